"""Compile many kernels in parallel, with one child process per core."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tqdm import tqdm

from app.base.interrupts import deferred_interrupts
from app.base.processor import usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")


def compile_on_all_cores(compiled: Callable[[Item], Result], items: Sequence[Item], title: str) -> list[Result]:
    """Return ``compiled(item)`` for each item, in order, computed by one thread per core; show a progress bar.

    If one call raises, or the user interrupts, calls that have not begun are cancelled and the exception is raised.
    """
    with deferred_interrupts() as check_interrupt, ThreadPoolExecutor(usable_cores()) as pool:

        def compile_item(item: Item) -> Result:
            check_interrupt()
            return compiled(item)

        done = pool.map(compile_item, items)
        return [*tqdm(done, desc=title, total=len(items), unit=" kernels", disable=None)]
