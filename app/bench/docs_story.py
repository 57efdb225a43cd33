"""What compares step with step, and the old reports' figures with ours. Pure."""

from __future__ import annotations

import textwrap

from app.bench.docs_data import Bench, OldReport, OldVersion
from app.bench.docs_tables import WIDTH, Benches, ratio, share, time, times
from app.bench.results import DEBUG
from app.bench.table import SHORT

# Variant → its types, each with the variant and type that its file says it improves on; others: the step before.
SINCE: dict[str, tuple[tuple[str, str, str], ...]] = {
    "constant": (("float32", "direct", "float32"),),
    "shared-constant": (("float32", "shared-tile", "float32"),),
    "half2": (("float16", "unrolled", "float32"),),
    "tensor-core": (("float16", "implicit-gemm", "float16"), ("tfloat32", "implicit-gemm", "float32")),
    "register-patch": (("float32", "register-tiled", "float32"),),
}
GEMM_SINCE: dict[str, tuple[tuple[str, str, str], ...]] = {
    "tensor-core": (("float16", "register-tiled", "float32"), ("tfloat32", "register-tiled", "float32")),
    "split-k": (("float32", "register-tiled", "float32"),),
}
LARGE_LAYER = "fc1"


def gains(benches: Benches, operation: str) -> dict[int, str]:
    """Step → one sentence on what it gained over the step that it improves on, network by network."""
    rows = _variants(benches, operation)
    names = [(step, name) for step, name, dtype in rows if dtype == "float32"]
    found: dict[int, list[str]] = {}
    for step, name in dict.fromkeys((step, name) for step, name, _ in rows):
        before = max((other for other in names if 0 < other[0] < step), default=None) if step else None
        usual = (("float32", before[1] if before else "", "float32"),)
        for dtype, base, base_dtype in (SINCE if operation == "conv" else GEMM_SINCE).get(name, usual):
            parts = []
            for bench in benches.values():
                ms, base_ms = (_ms(bench, operation, *pair) for pair in ((name, dtype), (base, base_dtype)))
                gain = ratio(base_ms, ms)
                if ms is not None:
                    parts.append(f"`{bench.network}` {time(ms)} ms" + (f" (×{times(gain)})" if gain else ""))
            what = "conv1 + conv2" if operation == "conv" else LARGE_LAYER
            against = f"; in brackets how many times as fast as {base} in {SHORT[base_dtype]}" if base else ""
            text = f"Measured in {SHORT[dtype]}, {what}{against}: {', '.join(parts)}."
            found.setdefault(step, []).append(text + _peaks(benches, operation, name, dtype))
    return {step: textwrap.fill(" ".join(texts), WIDTH, break_on_hyphens=False) for step, texts in found.items()}


def _variants(benches: Benches, operation: str) -> list[tuple[int, str, str]]:
    """(step, name, type) of every timed variant of the operation."""
    found = {
        (row["step"], row["name"], row["dtype"])
        for bench in benches.values()
        for table in bench.document["tables"]
        if table["operation"] == operation and "+" not in table["item"]
        for row in table["rows"]
        if row["ms"] and row["step"] is not None and row["kind"] != DEBUG
    }
    return sorted(found)


def _ms(bench: Bench, operation: str, name: str, dtype: str) -> float | None:
    return bench.sum_ms(name, dtype) if operation == "conv" else bench.ms(LARGE_LAYER, name, dtype)


def _peaks(benches: Benches, operation: str, name: str, dtype: str) -> str:
    first = next(iter(benches.values()))
    items = [table["item"] for table in first.ops] if operation == "conv" else [LARGE_LAYER]
    parts = [f"{share(row)} on {item}" for item in items if (row := first.row(item, name, dtype)) and share(row)]
    return f" Share of the nearer peak on `{first.network}`: {', '.join(parts)}." if parts else ""


def beside_old(bench: Bench, report: OldReport) -> tuple[str, list[str], list[list[str]]]:
    """The report's versions with their figures, and what does the same here, over the same number of images.

    Title, head and rows of a table.
    """
    rows = []
    for old in report.versions:
        there = [time(ms) for ms in old.ops] or ["", ""]
        own: list[float | None] = [None, None, None]
        if old.variant and not report.whole_program:
            total = bench.total(old.variant, old.dtype, old.images)
            own = [*(total["ops"].get(op["item"]) for op in bench.ops), total["sum_ms"]] if total else own
        elif old.variant:
            own[2] = _whole_ms(bench, old.variant, old.images)
        rows.append(
            [
                old.version,
                f"{old.images:,}",
                *there,
                _sum(old),
                old.variant or "–",
                *map(time, own),
                times(ratio(old.sum_ms, own[2])),
            ]
        )
    rows += _best_here(bench, report)
    what, here = "conv1, conv2 and their sum", "the same steps"
    if report.whole_program:
        what, here = "the whole program", f"{here}, from images in page-locked memory to labels on the host,"
    head = ["version of the report", "images", "conv1 ms", "conv2 ms", "ms", "here", "conv1 ms", "conv2 ms", "ms", "×"]
    if report.whole_program:  # there are no op times to show
        keep = (0, 1, 4, 5, 8, 9)
        head, rows = [head[at] for at in keep], [[row[at] for at in keep] for row in rows]
    cpu = bench.document["cpu"]
    where = f"{bench.document['device']['name']}, {bench.document['date']}"
    where += f" (CPU: {cpu['name']}, one thread, NumPy {cpu['numpy']})"
    return f"The report of {report.year} ({report.card}), {what}; here: {here} on {where}:", head, rows


def _sum(old: OldVersion) -> str:
    return f"{'< ' if old.at_most else ''}{time(old.sum_ms)}"


def _best_here(bench: Bench, report: OldReport) -> list[list[str]]:
    """Our best in each type over the report's largest batch, and how many times as fast as its best that is."""
    images = max(old.images for old in report.versions)
    theirs = min((old for old in report.versions if old.images == images), key=lambda old: old.sum_ms)
    rows = []
    for precision, dtype in (("fp32", "float32"), ("fp16", "float16")):
        own: list[float | None] = [None, None, None]
        name = "auto"
        if report.whole_program:
            own[2] = _whole_ms(bench, name, images, precision)
        elif (best := bench.best_total(dtype, images)) is not None:
            name = best["name"]
            own = [*(best["ops"].get(op["item"]) for op in bench.ops), best["sum_ms"]]
        if own[2] is not None:
            there = [*([time(ms) for ms in theirs.ops] or ["", ""]), _sum(theirs)]
            gain = times(ratio(theirs.sum_ms, own[2]))
            rows.append([f"the best of both, {precision} here", f"{images:,}", *there, name, *map(time, own), gain])
    return rows


def _whole_ms(bench: Bench, name: str, images: int, precision: str = "fp32") -> float | None:
    """The whole program's time with that variant for all convolutions."""
    batch = next((batch for batch in bench.document["batches"] if batch["images"] == images), None)
    rows = batch["whole_program"] if batch else []
    return next((row["ms"] for row in rows if (row["conv"], row["precision"]) == (name, precision)), None)
