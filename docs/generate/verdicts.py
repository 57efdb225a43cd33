"""The ideas that the old reports kept or dropped, and what each is worth today."""

from collections.abc import Callable
from dataclasses import dataclass

from app.bench.old_reports import OldReport
from app.runtime.statistics import speedup
from app.text import format_factor
from docs.generate.figures import Bench, Figures
from docs.generate.tables import markdown

SAME = 0.03  # ratios nearer to 1 than this are no verdict


@dataclass(frozen=True)
class Verdict:
    """An idea, and the old verdict on it as ``SYSTEM: VERDICT``.

    then: the report's versions before the idea and with it, over ``images`` images; or the gain that the report
    itself names; or None where it gives no times. now: our rows for the same two steps, the second one in ``dtype``;
    or a function of a network's measurements.
    """

    idea: str
    old: str
    then: tuple[str, str] | str | None
    now: tuple[str, str] | Callable[[Bench], float | None]
    dtype: str = "float32"
    images: int = 10_000

    def gain_then(self, report: OldReport) -> float | None:
        """Return how many times as fast the idea was in the report, or None."""
        if self.then is None or isinstance(self.then, str):
            return report.gain(self.then) if self.then else None
        before, after = (report.version(name, self.images).sum_ms for name in self.then)
        return before / after

    def gain_now(self, bench: Bench) -> float | None:
        """Return how many times as fast the idea is here, or None."""
        if callable(self.now):
            return self.now(bench)
        before, after = self.now
        return speedup(bench.sum_ms(before), bench.sum_ms(after, self.dtype))


def _tensor_cores(bench: Bench) -> float | None:
    before, after = bench.best_total("float32"), bench.best_total("float16")
    return speedup(before["sum_ms"], after["sum_ms"]) if before and after else None


def _fused_activation(bench: Bench) -> float | None:
    """Convolution and activation in one kernel against the same kernel and an activation kernel, both layers."""
    separate = together = 0.0
    for table in bench.ops:
        chain = next((item for item in bench.tables if item.startswith(f"{table['item']}+")), None)
        row = bench.best(chain, "float32") if chain else None
        if chain is None or row is None:
            continue
        alone = bench.ms(table["item"], row["name"])
        activation = bench.best(chain.split("+")[1], "float32")
        if alone is None or activation is None:
            return None
        separate, together = separate + alone + activation["ms"], together + row["ms"]
    return speedup(separate, together)


def _in_kernel(item: str, before: str, after: str) -> Callable[[Bench], float | None]:
    """The gain of one layer."""
    return lambda bench: speedup(bench.ms(item, before), bench.ms(item, after))


VERDICTS = (
    Verdict(
        "images over the grid, not in a loop",
        "fa19: faster",
        ("first GPU kernel (loops over images inside)", "one image per grid z"),
        ("image-loop", "direct"),
    ),
    Verdict(
        "shared-memory convolution",
        "fa19: faster",
        ("one image per grid z", "shared-memory convolution"),
        ("direct", "shared-tile"),
    ),
    Verdict(
        "filters in constant memory",
        "fa19: slower, dropped",
        ("one image per grid z", "weights in constant memory"),
        ("direct", "constant"),
    ),
    Verdict(
        "shared-memory input + constant filters, against im2col + GEMM",
        "k7: faster, its winner (at least)",
        ("unroll + shared-memory GEMM, tile 16, block 128", "shared-memory input + constant memory"),
        ("im2col-gemm", "shared-constant"),
    ),
    Verdict(
        "multi-kernel: one per layer size",
        "fa19: no gain alone",
        ("shared-memory convolution", "one kernel per layer size (multi-kernel)"),
        ("shared-constant", "specialised"),
    ),
    Verdict(
        "`__restrict__` + unrolled filter loops",
        "fa19: faster",
        ("one kernel per layer size (multi-kernel)", "multi-kernel + __restrict__ + unrolled inner loop"),
        ("specialised", "unrolled"),
    ),
    Verdict(
        "`__restrict__` + unrolled, against the direct kernel",
        "minidnn86: faster",
        ("direct kernel", "__restrict__ + unrolled"),
        ("direct", "unrolled"),
        images=5000,
    ),
    Verdict(
        "im2col + tiled GEMM, against shared-memory convolution",
        "lenet5: faster",
        ("shared-memory convolution", "unroll, tiled GEMM, re-layout"),
        ("shared-tile", "im2col-gemm"),
        images=100,
    ),
    Verdict(
        "unrolling fused into the GEMM, layer 2",
        "k7: slower",
        None,
        _in_kernel("conv2", "im2col-gemm", "implicit-gemm"),
    ),
    Verdict(
        "FP16 arithmetic",
        "minidnn86: hardly faster",
        ("__restrict__ + unrolled", "FP16 arithmetic"),
        ("unrolled", "half2"),
        dtype="float16",
        images=5000,
    ),
    Verdict("FP16 on tensor cores, best against best fp32", "lenet5: its GPU could not", None, _tensor_cores),
    Verdict("shared memory in pooling", "lenet5: slower, dropped", None, _in_kernel("pool1", "direct", "shared")),
    Verdict("fused activation (ReLU; `k7`: tanh)", "lenet5: changed the result, dropped", None, _fused_activation),
    Verdict(
        "no device debug flags",
        "lenet5: twice as fast",
        "no device debug",
        ("direct, device debug", "direct"),
    ),
)


def verdicts(figures: Figures) -> str:
    """Write each idea's gain then and now: on its own system's network, and the range over all networks."""
    rows = []
    for verdict in VERDICTS:
        system, _, old = verdict.old.partition(": ")
        then, now = verdict.gain_then(figures.old[system]), verdict.gain_now(figures.bench(system))
        all_now = {name: verdict.gain_now(bench) for name, bench in figures.benches.items()}
        every = {name: gain for name, gain in all_now.items() if gain is not None}
        reach = (
            f"{format_factor(min(every.values()))} to {format_factor(max(every.values()))}" if len(every) > 1 else ""
        )
        if now is None and len(every) == 1:
            (name,) = every
            reach = f"{format_factor(every[name])} (`{name}`)"
        rows.append([verdict.idea, f"`{system}`: {old}", _effect(now), format_factor(then), format_factor(now), reach])
    return markdown(["idea", "old verdict", "today", "× then", "× now", "× now, all networks"], rows, 3)


def _effect(gain: float | None) -> str:
    if gain is None:
        return "not measured"
    return "no difference" if abs(gain - 1) < SAME else "faster" if gain > 1 else "slower"
