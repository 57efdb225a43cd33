"""Write each kernel's gain over the step that it improves on, and each idea of the old reports then and now."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.bench.document import Row
from app.bench.old_reports import OldReport, best_total
from app.kernels.registry import variants
from app.kernels.variant import Variant
from app.precision import SHORT
from app.runtime.statistics import speedup
from app.text import format_factor, format_ms
from docs.generate.figures import Bench, Figures
from docs.generate.tables import filled, share, table

LARGE_LAYER = "fc1"
VERDICTS = Path(__file__).parents[1] / "verdicts.json"
SAME = 0.03  # ratios closer to 1 than this give no verdict


def gain(operation: str, name: str, figures: Figures) -> str:
    """Write the times of a step on every network, and how many times as fast as the step that it continues it is."""
    rows = {row.name: row for row in variants(operation)}
    types = ("float32",) if "float32" in rows[name].dtypes else rows[name].dtypes
    timed = [dtype for dtype in types if any(_all_ms(figures, operation, name, dtype))]
    if not timed:
        return "Not measured."
    return filled(" ".join(_sentence(figures, rows, name, dtype) for dtype in timed))


def _all_ms(figures: Figures, operation: str, name: str, dtype: str) -> list[float | None]:
    """Return a step's time on each network, None where it was not measured."""
    return [bench.ms(name, dtype, _item(operation)) for bench in figures.benches.values()]


def _item(operation: str) -> str | None:
    return None if operation == "conv" else LARGE_LAYER


def _base(figures: Figures, rows: Mapping[str, Variant], name: str, dtype: str) -> tuple[str, str]:
    """Return the nearest measured step below, and its type: the same, else float32. Empty: there is none."""
    below = rows[name].since
    while below is not None:
        for base_dtype in dict.fromkeys((dtype, "float32")):
            if any(_all_ms(figures, rows[below].operation, below, base_dtype)):
                return below, base_dtype
        below = rows[below].since
    return "", dtype


def _sentence(figures: Figures, rows: Mapping[str, Variant], name: str, dtype: str) -> str:
    operation = rows[name].operation
    base, base_dtype = _base(figures, rows, name, dtype)
    item, parts = _item(operation), []
    base_times = _all_ms(figures, operation, base, base_dtype)
    times = _all_ms(figures, operation, name, dtype)
    for network, ms, base_ms in zip(figures.benches, times, base_times, strict=True):
        if ms is not None:
            gained = speedup(base_ms, ms)
            parts.append(f"`{network}` {format_ms(ms)} ms" + (f" (×{format_factor(gained)})" if gained else ""))
    against = f"; brackets give the speed-up over {base} in {SHORT[base_dtype]}" if base else ""
    first = next(iter(figures.benches.values()))
    items = [item] if item else [single["item"] for single in first.ops]
    shares = [f"{text} on {item}" for item in items if (text := share(first.row(item, name, dtype), "of the {} peak"))]
    peaks = f" `{first.network}` reaches {', '.join(shares)}." if shares else ""
    return f"Times in {SHORT[dtype]} for {item or 'conv1 + conv2'}{against}: {', '.join(parts)}.{peaks}"


def _tensor_cores(bench: Bench) -> float | None:
    """Our best in fp16 against our best in fp32."""
    return speedup(*(best_total(bench.document, dtype).get("sum_ms") for dtype in ("float32", "float16")))


def _fused_activation(bench: Bench) -> float | None:
    """Convolution and activation in one kernel against the same kernel and an activation kernel, both layers."""
    separate = together = 0.0
    for op in (single["item"] for single in bench.ops):
        chain = next((item for item in bench.tables if item.startswith(f"{op}+")), "")
        if row := bench.best(chain, "float32"):
            alone = bench.ms(row["name"], item=op)
            activation = bench.best(chain.split("+")[1], "float32")
            if alone is None or not activation:
                return None
            separate, together = separate + alone + activation["ms"], together + row["ms"]
    return speedup(separate, together)


MEASURES = {"tensor cores": _tensor_cores, "fused activation": _fused_activation}


def verdicts(figures: Figures) -> str:
    """Write each idea's gain then and now: on its own system's network, and the range over all networks.

    then: the report's versions without and with the idea, over ``images`` images; or the gain in the report itself;
    absent if it has neither. now: our rows for the same two steps, the second one in ``dtype``, of one ``item`` or
    summed over the convolutions; or a name in ``MEASURES``.
    """
    rows = []
    for verdict in json.loads(VERDICTS.read_text(encoding="utf-8")):
        system = verdict["system"]
        then, now = _gain_then(verdict, figures.old[system]), _gain_now(verdict, figures.bench(system))
        gains = {name: _gain_now(verdict, bench) for name, bench in figures.benches.items()}
        known = sorted((gain, name) for name, gain in gains.items() if gain is not None)
        reach = f"{format_factor(known[0][0])} to {format_factor(known[-1][0])}" if len(known) > 1 else ""
        if now is None and len(known) == 1:
            reach = f"{format_factor(known[0][0])} (`{known[0][1]}`)"
        rows.append(
            f"{verdict['idea']} | `{system}`: {verdict['verdict']} | {_effect(now)} | {format_factor(then)} | "
            f"{format_factor(now)} | {reach}"
        )
    return table("idea | old verdict | today | × then | × now | × now, all networks", rows, 3)


def learned(figures: Figures) -> str:
    """Write what each report found about each of its ideas, and what the same two steps show here on its network."""
    found = json.loads(VERDICTS.read_text(encoding="utf-8"))
    systems = dict.fromkeys(verdict["system"] for verdict in found)
    rows = [
        f"`{system}` | {verdict['idea']} | {verdict['verdict']} | {_effect(_gain_now(verdict, figures.bench(system)))}"
        for system in systems
        for verdict in found
        if verdict["system"] == system
    ]
    return table("report | idea | verdict then | today, on its network", rows, 4)


def _gain_then(verdict: Row, report: OldReport) -> float | None:
    then: Sequence[str] | float | None = verdict.get("then")
    if then is None or isinstance(then, int | float):
        return then
    before, after = (report.version(name, verdict.get("images", 10_000)).sum_ms for name in then)
    return before / after


def _gain_now(verdict: Row, bench: Bench) -> float | None:
    if verdict["now"] in [*MEASURES]:
        return MEASURES[verdict["now"]](bench)
    before, after = verdict["now"]
    item = verdict.get("item")
    return speedup(bench.ms(before, item=item), bench.ms(after, verdict.get("dtype", "float32"), item))


def _effect(gain: float | None) -> str:
    if gain is None:
        return "not measured"
    return "no difference" if abs(gain - 1) < SAME else "faster" if gain > 1 else "slower"
