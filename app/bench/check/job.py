"""``main.py check``: hold one kernel against the NumPy reference, on the processor or on the card."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from app.bench.check.cases import Case, described, named_cases, small_cases, types_of
from app.bench.ladder.failures import reason_of
from app.commands.options.check import CheckRequest
from app.cuda import device
from app.emulation.building import COMPILER, MISSING, why_not
from app.emulation.program import ENDLESS, Fault, built
from app.errors import UserError
from app.interrupts import deferred_interrupts, exit_on_interrupt
from app.kernels import registry
from app.kernels.variant import Variant
from app.planning.choices import OPERATIONS
from app.processor import usable_cores
from app.text import Column, paragraph, table, terminal_width

LIKE = "sm_90a"  # whose limits hold on the processor
RIGHT = "right"
NOT_TRIED = "not tried"
OFF_THE_CARD = "check --device cpu names the line"


def check(request: CheckRequest) -> int:
    """Check the kernel, print each shape's verdict and each first mistake. Returns 1 if there was one, else 0.

    Raises UserError.
    """
    option, name = request.kernel
    row = registry.find(OPERATIONS[option], name)
    if row is None:
        raise UserError(f"--{option} auto is no kernel: name one (see main.py kernels)")
    no_gpu = device.why_no_gpu() if request.device != "cpu" else ""
    if request.device == "cuda" and no_gpu:
        raise UserError(f"{no_gpu}: check on the processor with --device cpu")
    on_card = no_gpu is None
    card = device.describe_gpu() if on_card else {"name": "the processor", "architecture": LIKE}
    arch = card["architecture"]
    if not on_card:
        _check_processor(row)
    if request.layer is None and request.shape is None:
        cases = small_cases(row, arch)
    else:
        cases = named_cases(row, arch, request.network, request.layer, request.shape)
    if not cases:
        raise UserError(f"{row.operation} kernel '{row.name}' serves none of the shapes on {arch}: name one by --shape")
    with _on_card(cases, arch) if on_card else _on_processor(cases) as found:
        verdicts = [*tqdm(found, total=len(cases), desc=row.name, unit=" shapes", disable=None)]
    _print(row, card["name"], cases, verdicts)
    return int(any(verdict is not None for verdict in verdicts))


def _check_processor(row: Variant) -> None:
    """Raise UserError if the row cannot run there."""
    if (reason := why_not(row)) is not None:
        raise UserError(f"{row.operation} kernel '{row.name}' runs on a GPU alone: {reason}")
    if COMPILER is None:
        raise UserError(MISSING)


@contextmanager
def _on_processor(cases: list[Case]) -> Iterator[Iterator[str | None]]:
    """Give each case's first mistake, or None, in turn."""
    with (
        tempfile.TemporaryDirectory() as folder,
        deferred_interrupts() as check_interrupt,
        ThreadPoolExecutor(usable_cores()) as pool,
    ):
        endless = threading.Event()

        def verdict(number: int, case: Case) -> str | None:
            check_interrupt()
            if endless.is_set():
                return f"{NOT_TRIED}: each shape may take as long to stop; mend the loop without an end first"
            try:
                found = on_processor(case, Path(folder) / str(number))
                if found is not None and ENDLESS in found:
                    endless.set()
                return found
            finally:
                check_interrupt()  # a compiler or a program that Ctrl-C has ended says nothing of the kernel

        yield pool.map(verdict, range(len(cases)), cases)


def on_processor(case: Case, folder: Path) -> str | None:
    """Compile and run a case in a new folder; return its first mistake, or None. Raises UserError."""
    program = built(case.row, case.problem, {}, case.images, folder)
    arrays = [case.x, *case.packed()]

    def run() -> list[np.ndarray]:
        program.run(arrays, low=True)  # arrays begin at a fence, then they end at one
        return program.run(arrays, low=False)

    return _mistake(case, run)


def _mistake(case: Case, run: Callable[[], list[np.ndarray]]) -> str | None:
    try:
        return case.mistake(run())
    except Fault as fault:
        return str(fault)


@contextmanager
def _on_card(cases: list[Case], arch: str) -> Iterator[Iterator[str | None]]:
    """The same on the current card."""
    with exit_on_interrupt(), device.gpu_errors():
        yield _card_verdicts(cases, arch)


def _card_verdicts(cases: list[Case], arch: str) -> Iterator[str | None]:
    from app.bench.check.on_card import run

    lost = False
    for case in cases:
        if lost:
            yield f"{NOT_TRIED}: the card takes no more work of this process"
            continue
        try:
            yield _mistake(case, partial(run, case, arch))
        except Exception as error:
            reason = reason_of(error)
            lost = reason is None and device.card_is_lost(error)
            if reason is None and not lost:
                raise
            yield reason or f"the card stopped it: {' '.join(str(error).split())}; {OFF_THE_CARD}"


def _print(row: Variant, where: str, cases: list[Case], verdicts: list[str | None]) -> None:
    width = terminal_width()
    title = f"{row.operation} {row.name} ({row.source}) on {where}, against the reference in float64"
    columns = [Column("shape", left=True), Column("type", left=True), Column("images"), Column("verdict", left=True)]
    cells = [
        [described(case.problem), types_of(case.problem), str(case.images), _short(verdict)]
        for case, verdict in zip(cases, verdicts, strict=True)
    ]
    lines = [*paragraph(title, width), *table(columns, cells, width)]
    for case, verdict in zip(cases, verdicts, strict=True):
        if verdict and _short(verdict) != NOT_TRIED:
            lines += ["", *paragraph(f"{described(case.problem)}, {types_of(case.problem)}: {verdict}", width)]
    skipped = sorted({verdict for verdict in verdicts if verdict and _short(verdict) == NOT_TRIED})
    wrong = sum(verdict is not None for verdict in verdicts)
    lines += ["", *(line for reason in skipped for line in paragraph(reason, width))]
    lines += [f"{RIGHT if not wrong else 'WRONG'}: {len(cases) - wrong} of {len(cases)} shapes are right"]
    print("\n".join(lines))


def _short(verdict: str | None) -> str:
    """Return a verdict for its column."""
    return RIGHT if verdict is None else NOT_TRIED if verdict.startswith(NOT_TRIED) else "WRONG"
