"""The ideas that the old reports kept or dropped, and what each is worth today. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.bench.stored_figures import Bench, OldReport
from app.runtime.statistics import speedup
from app.text import format_factor
from docs.generate.tables import Benches, markdown

SAME = 0.03  # ratios nearer to 1 than this are no verdict


@dataclass(frozen=True)
class Verdict:
    """An idea, what its system made of it, and how many times as fast it was there (None: not told) and is here."""

    idea: str
    system: str
    old: str
    then: Callable[[OldReport], float] | None
    now: Callable[[Bench], float | None]


def _then(before: str, after: str, images: int = 10_000) -> Callable[[OldReport], float]:
    return lambda report: report.version(before, images).sum_ms / report.version(after, images).sum_ms


def _now(before: str, after: str, dtype: str = "float32", op: str | None = None) -> Callable[[Bench], float | None]:
    def found(bench: Bench) -> float | None:
        if op is not None:
            return speedup(bench.ms(op, before), bench.ms(op, after, dtype))
        return speedup(bench.sum_ms(before), bench.sum_ms(after, dtype))

    return found


def _best_in(dtype: str) -> Callable[[Bench], float | None]:
    def found(bench: Bench) -> float | None:
        before, after = bench.best_total("float32"), bench.best_total(dtype)
        return speedup(before["sum_ms"], after["sum_ms"]) if before and after else None

    return found


def _shared_pool(bench: Bench) -> float | None:
    return speedup(bench.ms("pool1", "direct"), bench.ms("pool1", "shared"))


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


VERDICTS = (
    Verdict(
        "images over the grid, not in a loop",
        *("fa19", "faster"),
        _then("first GPU kernel (loops over images inside)", "one image per grid z"),
        _now("image-loop", "direct"),
    ),
    Verdict(
        "shared-memory convolution",
        *("fa19", "faster"),
        _then("one image per grid z", "shared-memory convolution"),
        _now("direct", "shared-tile"),
    ),
    Verdict(
        "filters in constant memory",
        *("fa19", "slower, dropped"),
        _then("one image per grid z", "weights in constant memory"),
        _now("direct", "constant"),
    ),
    Verdict(
        "shared-memory input + constant filters, against im2col + GEMM",
        *("k7", "faster, its winner (at least)"),
        _then("unroll + shared-memory GEMM, tile 16, block 128", "shared-memory input + constant memory"),
        _now("im2col-gemm", "shared-constant"),
    ),
    Verdict(
        "multi-kernel: one per layer size",
        *("fa19", "no gain alone"),
        _then("shared-memory convolution", "one kernel per layer size (multi-kernel)"),
        _now("shared-constant", "specialised"),
    ),
    Verdict(
        "`__restrict__` + unrolled filter loops",
        *("fa19", "faster"),
        _then("one kernel per layer size (multi-kernel)", "multi-kernel + __restrict__ + unrolled inner loop"),
        _now("specialised", "unrolled"),
    ),
    Verdict(
        "`__restrict__` + unrolled, against the direct kernel",
        *("minidnn86", "faster"),
        _then("direct kernel", "__restrict__ + unrolled", 5000),
        _now("direct", "unrolled"),
    ),
    Verdict(
        "im2col + tiled GEMM, against shared-memory convolution",
        *("lenet5", "faster"),
        _then("shared-memory convolution", "unroll, tiled GEMM, re-layout", 100),
        _now("shared-tile", "im2col-gemm"),
    ),
    Verdict(
        "unrolling fused into the GEMM, layer 2",
        *("k7", "slower"),
        None,
        _now("im2col-gemm", "implicit-gemm", op="conv2"),
    ),
    Verdict(
        "FP16 arithmetic",
        *("minidnn86", "hardly faster"),
        _then("__restrict__ + unrolled", "FP16 arithmetic", 5000),
        _now("unrolled", "half2", "float16"),
    ),
    Verdict("FP16 on tensor cores, best against best fp32", "lenet5", "its GPU could not", None, _best_in("float16")),
    Verdict("shared memory in pooling", "lenet5", "slower, dropped", None, _shared_pool),
    Verdict("fused activation (ReLU; `k7`: tanh)", "lenet5", "changed the result, dropped", None, _fused_activation),
    Verdict(
        "no device debug flags",
        *("lenet5", "twice as fast"),
        lambda report: report.gain("no device debug"),
        _now("direct, device debug", "direct"),
    ),
)


def verdicts(benches: Benches, old: Mapping[str, OldReport]) -> str:
    """Each idea's gain then and now: on its own system's network, and the range over all."""
    rows = []
    for verdict in VERDICTS:
        then = verdict.then(old[verdict.system]) if verdict.then else None
        now = verdict.now(benches[verdict.system])
        every = {name: found for name, bench in benches.items() if (found := verdict.now(bench)) is not None}
        reach = (
            f"{format_factor(min(every.values()))} to {format_factor(max(every.values()))}" if len(every) > 1 else ""
        )
        if now is None and len(every) == 1:
            (name,) = every
            reach = f"{format_factor(every[name])} (`{name}`)"
        rows.append(
            [
                verdict.idea,
                f"`{verdict.system}`: {verdict.old}",
                _effect(now),
                format_factor(then),
                format_factor(now),
                reach,
            ]
        )
    return markdown(["idea", "old verdict", "today", "× then", "× now", "× now, all networks"], rows, 3)


def _effect(gain: float | None) -> str:
    if gain is None:
        return "not measured"
    return "no difference" if abs(gain - 1) < SAME else "faster" if gain > 1 else "slower"
