"""What compares step with step, and the old reports' figures with ours. Pure."""

from __future__ import annotations

import textwrap

from app.bench.ladder.results import DEBUG
from app.bench.stored_figures import Bench
from app.precision import SHORT
from app.runtime.statistics import speedup
from app.text import format_factor, format_ms
from docs.generate.tables import WIDTH, Benches, share

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
                gain = speedup(base_ms, ms)
                if ms is not None:
                    parts.append(
                        f"`{bench.network}` {format_ms(ms)} ms" + (f" (×{format_factor(gain)})" if gain else "")
                    )
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
