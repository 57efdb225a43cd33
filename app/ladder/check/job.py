"""Run ``main.py check``: compare a kernel, run on the CPU or on the GPU, with the NumPy reference."""

import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.random import default_rng
from tqdm import tqdm

from app.base.errors import UserError
from app.base.interrupts import deferred_interrupts, exit_on_interrupt
from app.base.processor import core_count
from app.commands.check import CheckRequest
from app.cuda import device
from app.cuda.compiler import import_nvrtc, resource_report
from app.kernels import registry
from app.kernels.variant import Variant
from app.lab.bench.compiling import WrongResult, first_compiler_error, recoverable_error_reason
from app.lab.checking.cases import Case, Fault, describe_problem, requested_cases, small_cases, type_names
from app.lab.checking.user_cases import user_cases, with_new_data
from app.lab.user_kernel.child import CardProcess, LostError
from app.lab.user_kernel.row import UserVariant, open_user_kernel
from app.lab.user_kernel.template import write_template
from app.ladder.check.loads import rank_by_predicted_time, ranking_lines
from app.ladder.emulation import program
from app.ladder.emulation.program import COMPILER, ENDLESS, MISSING, CompileError, build_variant, why_not_on_cpu
from app.planning.choices import OPERATIONS
from app.records.kernels import Check, Verdict
from app.terminal.output import publish_report
from app.terminal.text import UNLIMITED, Column, paragraph, table

LIKE = "sm_90a"  # architecture whose limits apply on the CPU
RIGHT: Final = "right"
WRONG: Final = "WRONG"
NOT_TRIED: Final = "not tried"
MEND_LOOP = "each shape may take as long to stop; mend the loop without an end first"
TOLD = 3  # errors that the text describes without --wide: those of other shapes are mostly the same
DEFAULT = "direct"  # the kernel that --init copies
CPU_CHECK_HINT = "check --device cpu names the line"


def check(request: CheckRequest) -> int:
    """Check the kernel on each shape and print the verdicts. Return 1 if one is wrong, else 0.

    With ``init``, write a template of a kernel file instead. Raises UserError.
    """
    if request.init is not None:
        print(write_template(request.init, request.like or DEFAULT))
        return 0
    if request.file is not None:
        with open_user_kernel(request.file, request.like) as row:
            return _check_row(request, row)
    option, name = request.kernel_option
    found = registry.find_variant(OPERATIONS[option], name)
    if found is None:
        raise UserError(f"--{option} auto is no kernel: name one (see main.py kernels)")
    return _check_row(request, found)


def _check_row(request: CheckRequest, row: Variant) -> int:
    no_gpu = device.why_no_gpu() if request.device != "cpu" else ""
    if request.device == "cuda" and no_gpu:
        raise UserError(f"{no_gpu}: check on the processor with --device cpu")
    on_card = no_gpu is None
    card = device.describe_gpu() if on_card else {"name": "the processor", "architecture": LIKE}
    arch = card["architecture"]
    if not on_card:
        _require_cpu_support(row)
    if request.layer is not None or request.shape is not None:
        cases = requested_cases(row, arch, request.network, request.layer, request.shape)
        cases = with_new_data(cases, default_rng()) if isinstance(row, UserVariant) else cases
    else:
        cases = user_cases(row, arch, default_rng()) if isinstance(row, UserVariant) else small_cases(row, arch)
    if not cases:
        raise UserError(f"{row.operation} kernel '{row.name}' serves none of the shapes on {arch}: name one by --shape")
    if isinstance(row, UserVariant):
        for case in cases:
            row.check_signatures(case.problem)
        found = _check_file_on_card(row, request.like, cases, arch) if on_card else _check_cases_on_cpu(cases)
    else:
        found = _check_cases_on_card(cases, arch) if on_card else _check_cases_on_cpu(cases)
    verdicts = [*tqdm(found, total=len(cases), desc=row.name, unit=" shapes", disable=None)]
    if not on_card and not any(verdicts) and (reason := _card_compiler_error(cases[0])):
        raise UserError(f"{row.source}{reason}")
    document = _build_document(row, card["name"], cases, verdicts)
    right = not any(verdict is not None for verdict in verdicts)
    if request.counts and right:
        _require_cpu_support(row)
        document["places"] = rank_by_predicted_time(row)
    publish_report(document, as_text, request.output)
    return int(not right)


def _require_cpu_support(row: Variant) -> None:
    """Raise UserError if the kernel cannot run on the CPU: it has PTX or needs a library, or g++ is missing."""
    if (reason := why_not_on_cpu(row)) is not None:
        raise UserError(f"{row.operation} kernel '{row.name}' runs on a GPU alone: {reason}")
    if COMPILER is None:
        raise UserError(MISSING)


def _card_compiler_error(case: Case) -> str | None:
    """Return why a user's file does not compile for a GPU; "" if it does, None without NVRTC or for other kernels.

    g++ accepts more of C and C++ than NVRTC, which has no standard headers, and does not know every function of CUDA.
    """
    if not isinstance(row := case.row, UserVariant):
        return None
    try:
        import_nvrtc()
    except UserError:
        return None
    try:
        resource_report(row.path, row.launch_config(case.problem).defines, LIKE)
    except RuntimeError as error:
        line = re.search(rf"^{re.escape(row.source)}\((\d+)\): error", str(error), re.MULTILINE)
        place = f":{line[1]}" if line else ""
        return f"{place} is right on the processor, but for a GPU it {first_compiler_error(str(error))}"
    return ""


def _check_cases_on_cpu(cases: list[Case]) -> Iterator[str | None]:
    """Yield the first error of each case, or None, in order, from emulated runs on the CPU."""
    with (
        tempfile.TemporaryDirectory() as folder,
        deferred_interrupts() as check_interrupt,
        ThreadPoolExecutor(core_count()) as pool,
    ):
        endless = threading.Event()

        def check_case(number: int, case: Case) -> str | None:
            check_interrupt()
            if endless.is_set():
                return f"{NOT_TRIED}: {MEND_LOOP}"
            try:
                found = check_case_on_cpu(case, Path(folder) / str(number), shared=len(cases) >= program.SHARED_FROM)
                if found is not None and ENDLESS in found:
                    endless.set()
                return found
            finally:
                check_interrupt()  # if Ctrl-C has ended the compiler or program, the error is not the kernel's

        yield from pool.map(check_case, range(len(cases)), cases)


def check_case_on_cpu(case: Case, folder: Path, *, shared: bool) -> str | None:
    """Compile a case in ``folder``, run it, return its first error or None. shared: reuse compiled common parts.

    Raises UserError if the kernel does not compile.
    """
    try:
        built = build_variant(case.row, case.problem, {}, case.images, folder, shared)
    except CompileError as error:
        hint = " (it compiles for a GPU: check it on one)" if _card_compiler_error(case) == "" else ""
        raise UserError(f"{error}{hint}") from None
    inputs = case.inputs()

    def run_twice() -> list[np.ndarray]:
        built.run(inputs, low=True)  # arrays begin at a guard page, and in the next run they end at one
        return built.run(inputs, case.rerun_case.inputs(), low=False)

    return _first_error(case, run_twice, ", blocks and threads in another order")


def _first_error(case: Case, run_twice: Callable[[], list[np.ndarray]], order: str = "") -> str | None:
    try:
        return case.describe_error_of_two_runs(run_twice(), order)
    except Fault as fault:
        return str(fault)


def _check_cases_on_card(cases: list[Case], arch: str) -> Iterator[str | None]:
    """Yield the first error of each case, or None, in order, from runs on the GPU in this process."""
    lost = False
    with exit_on_interrupt(), device.translate_gpu_errors():
        from app.lab.checking.on_card import run_case

        for case in cases:
            if lost:
                yield f"{NOT_TRIED}: the card takes no more work of this process"
                continue
            try:
                yield _first_error(case, partial(run_case, case, arch))
            except Exception as error:
                reason = recoverable_error_reason(error)
                lost = reason is None and device.is_fatal_cuda_error(error)
                if reason is None and not lost:
                    raise
                yield reason or f"the card stopped it: {' '.join(str(error).split())}; {CPU_CHECK_HINT}"


def _check_file_on_card(row: UserVariant, like: str | None, cases: list[Case], arch: str) -> Iterator[str | None]:
    """Yield the first error of each case, or None, in order, from GPU runs in a child process, which may crash."""
    with exit_on_interrupt():
        from app.lab.checking.on_card import check_user_case

    endless = False
    with CardProcess() as process:
        for case in cases:
            if endless:
                yield f"{NOT_TRIED}: {MEND_LOOP}"
                continue
            try:
                yield process.call(check_user_case, row.path, like, case.problem, case.images, case.seed, arch)
            except (WrongResult, LostError) as reason:
                endless = ENDLESS in str(reason)
                yield str(reason)


def _build_document(row: Variant, where: str, cases: list[Case], verdicts: list[str | None]) -> Check:
    return {
        "schema": "lenet5-inference/check/1",
        "operation": row.operation,
        "kernel": row.name,
        "source": row.source,
        "device": where,
        "shapes": [
            {
                "shape": describe_problem(case.problem),
                "types": type_names(case.problem),
                "images": case.images,
                "verdict": _verdict_word(reason),
                "reason": reason,
            }
            for case, reason in zip(cases, verdicts, strict=True)
        ],
    }


def _verdict_word(reason: str | None) -> Verdict:
    return RIGHT if reason is None else NOT_TRIED if reason.startswith(NOT_TRIED) else WRONG


def as_text(document: Check, width: int) -> str:
    """Return the report as text: verdict on each shape, the first errors, and how many shapes had right results."""
    file = "" if document["source"] == document["kernel"] else f" ({document['source']})"
    kernel = f"{document['operation']} {document['kernel']}{file}"
    columns = [Column("shape", left=True), Column("type", left=True), Column("images"), Column("verdict", left=True)]
    shapes = document["shapes"]
    cells = [[row["shape"], row["types"], str(row["images"]), row["verdict"]] for row in shapes]
    title = f"{kernel} on {document['device']}, against the reference in float64"
    lines = [*paragraph(title, width), *table(columns, cells, width)]
    wrong = [row for row in shapes if row["verdict"] == WRONG]
    told = wrong if width == UNLIMITED else wrong[:TOLD]
    for row in told:
        lines += ["", *paragraph(f"{row['shape']}, {row['types']}: {row['reason']}", width)]
    if more := len(wrong) - len(told):
        lines += ["", f"({more} more wrong; --wide says what is wrong with each)"]
    right = sum(row["verdict"] == RIGHT for row in shapes)
    skipped = dict.fromkeys(row["reason"] or "" for row in shapes if row["verdict"] == NOT_TRIED)
    lines += ["", *(line for reason in skipped for line in paragraph(reason, width))]
    verdict = RIGHT if right == len(shapes) else WRONG
    lines.append(f"{verdict}: {right} of {len(shapes)} shapes are right")
    if places := document.get("places"):
        lines += ["", *ranking_lines(places, document["operation"], document["kernel"], width)]
    return "\n".join(lines)
