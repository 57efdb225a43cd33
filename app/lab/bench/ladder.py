"""Check and time all kernels and libraries that can compute an item of ``bench``, on the current GPU."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from app.base.clock import time_call
from app.base.errors import UserError
from app.base.frozen import Frozen
from app.base.precision import BY_DTYPE
from app.cuda.compiler import architecture_number
from app.cuda.memory import DeviceMemoryError
from app.kernels.problems import ConvProblem, Problem
from app.kernels.variant import Variant
from app.lab.bench import cudnn as library
from app.lab.bench.cases import SPARSE_FILTERS, Item, item_variants, reference_weights
from app.lab.bench.compiling import WrongResult, recoverable_error_reason
from app.lab.bench.results import CPU, CPU_NAME, CPU_RUNS, DEBUG, LIBRARY, OURS, Result, Table
from app.lab.bench.trial import Trial
from app.network.graph import Graph
from app.planning.tuning import Tuning

CPU_FLOPS = 5e8  # enough for a steady time, few enough to finish quickly
CPU_ELEMENTS = 1 << 24  # elements of the input
DEBUGGED = "direct"  # the variant that is also compiled without optimisation


class ItemTimer(Frozen):
    """Makes the table of an item. only: names of variants, None for all. step: called before each row.

    known: tuned settings. noise: relative error of a median time at which to stop. l2: ``cold`` or ``warm`` cache.
    mine: the row of a user's kernel, which comes last. time_mine: function that checks and times this row.
    """

    arch: str
    known: Tuning
    noise: float
    l2: str
    only: set[str] | None
    with_cudnn: bool
    step: Callable[[], object]
    mine: Variant | None = None
    time_mine: Callable[[Problem, int, float, str], Result] | None = None

    def row_count(self, item: Item) -> int:
        """Return how many rows the item's table will have, for the progress bar."""
        served = item_variants(item, self.only, self.mine)
        cudnn = len(item.problems) if item.is_single_convolution and self.with_cudnn else 0
        debug = sum(row.name == DEBUGGED and problem.dtype == "float32" for problem, row in served)
        return 1 + cudnn + len(served) + (item.is_single_convolution and debug)

    def time_item(self, item: Item, graph: Graph | None, images: int) -> Table:
        """Return the table of the item, timed on ``images`` images or as many as fit. Raises UserError if none fit."""
        while True:
            try:
                measured = self._time_variants(item, images)
                break
            except DeviceMemoryError:
                if images == 1:
                    raise UserError(f"{item.name}: not even one image fits in the free device memory") from None
            images //= 2
        rows = (time_cpu_reference(item, graph, images), *measured)
        self.step()
        return Table(item.name, item.operation, item.is_single_convolution, images, item.problems, rows)

    def _time_variants(self, item: Item, images: int) -> list[Result]:
        found: list[Result] = []
        pairs = item_variants(item, self.only, self.mine)
        problems = dict.fromkeys(
            form
            for problem in item.problems.values()
            for form in (problem, *(served for served, _ in pairs if served.dtype == problem.dtype))
        )
        for problem in problems:
            served = [row for form, row in pairs if form == problem]
            cudnn = item.is_single_convolution and self.with_cudnn and BY_DTYPE[problem.dtype].cudnn
            if not served and not cudnn:
                continue
            trial = Trial(problem, images, self.arch)
            if cudnn and isinstance(problem, ConvProblem):
                found.append(self._time_cudnn(trial, problem))
            for row in served:
                if self.time_mine is not None and row is self.mine:
                    self.step()
                    found.append(self.time_mine(problem, images, self.noise, self.l2))
                    continue
                found.append(self.time_variant(trial, row))
                if row.name == DEBUGGED and problem.dtype == "float32" and item.is_single_convolution:
                    found.append(self.time_variant(trial, row, debug=True))
            del trial  # free its memory before the next trial allocates
        return found

    def _time_cudnn(self, trial: Trial, problem: ConvProblem) -> Result:
        self.step()
        if problem.dtype == "tfloat32" and architecture_number(self.arch) < 80:
            return library.make_cudnn_result(problem, reason=f"needs sm_80 or later, this is {self.arch}")
        return library.time_cudnn(problem, trial.images, trial.clock, self.noise, self.l2)

    def time_variant(self, trial: Trial, row: Variant, *, debug: bool = False) -> Result:
        """Check and time a variant; return times or why there are none. Raises DeviceMemoryError if memory is short."""
        self.step()
        kind = DEBUG if debug else LIBRARY if row.needs_cublas else OURS
        name = f"{row.name}, device debug" if debug else row.name
        settings = self.known.parameters(trial.problem, row, self.arch)
        note = SPARSE_FILTERS if row.sparse else ""
        result = Result(kind, name, trial.problem.dtype, row.step, settings=settings, note=note)
        refusal = row.refusal_reason(trial.problem, self.arch, settings)
        if refusal is not None:
            return replace(result, reason=refusal)
        try:
            launch = trial.bind_variant(row, settings, debug=debug)
            error = trial.check_outputs(launch)
            timing = trial.time_launch(launch, self.noise, self.l2)
        except Exception as failure:
            reason = str(failure) if isinstance(failure, WrongResult | UserError) else recoverable_error_reason(failure)
            if reason is None:
                raise
            return replace(result, reason=reason, wrong=not isinstance(failure, UserError))  # e.g. cuBLAS is missing
        return replace(
            result, **timing.json_row, error=error, instructions=row.instructions, work=row.work(trial.problem)
        )


def time_cpu_reference(item: Item, graph: Graph | None, images: int) -> Result:
    """Return the time of the NumPy reference in float32: the best run on few images, scaled to ``images``."""
    problem = next(iter(item.problems.values()))
    count = max(min(images, int(CPU_FLOPS / problem.flops), CPU_ELEMENTS // prod(item.in_shape)), 1)
    rng = np.random.default_rng(0)
    shape = (count, *item.in_shape)
    if item.layers[0].keeps_bytes:
        x: np.ndarray = rng.integers(0, 256, shape, dtype=np.uint8)
    else:
        x = rng.standard_normal(shape, dtype=np.float32)
    parameters = reference_weights(item, graph)
    # The reference may work in place: each run gets a copy, made before the clock starts.
    best = min(time_call(partial(item.apply_reference, x.copy(), parameters))[1] for _ in range(CPU_RUNS))
    dtype = "float32" if "float32" in item.problems else problem.dtype
    note = f"{count:,} images, scaled" if count < images else ""
    return Result(CPU, CPU_NAME, dtype, ms=best * images / count, runs=CPU_RUNS, note=note)
