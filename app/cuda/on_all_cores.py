"""Compile many kernels at a time: each in a process of its own, one thread per core waits for it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tqdm import tqdm

from app.base.interrupts import deferred_interrupts
from app.base.processor import usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_all_cores(compiled: Callable[[Item], Result], items: Sequence[Item], title: str) -> list[Result]:
    """Return ``compiled`` of each item, in order; a terminal shows a progress bar with this title.

    If one raises, or the user interrupts, those that have not begun are dropped, and its exception is raised.
    """
    with deferred_interrupts() as check_interrupt, ThreadPoolExecutor(usable_cores()) as pool:

        def one(item: Item) -> Result:
            check_interrupt()
            return compiled(item)

        done = pool.map(one, items)
        return [*tqdm(done, desc=title, total=len(items), unit=" kernels", disable=None)]
