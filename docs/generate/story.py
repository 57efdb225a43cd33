"""How much each kernel gained over the step that it improves on."""

from app.bench.ladder.results import DEBUG
from app.precision import SHORT
from app.runtime.statistics import speedup
from app.text import format_factor, format_ms
from docs.generate.figures import Bench, Figures
from docs.generate.tables import filled, share, single_layers

# Variant → its types, each with the variant and type that its file says it improves on; others: the step before.
SINCE: dict[str, dict[str, tuple[tuple[str, str, str], ...]]] = {
    "conv": {
        "constant": (("float32", "direct", "float32"),),
        "shared-constant": (("float32", "shared-tile", "float32"),),
        "half2": (("float16", "unrolled", "float32"),),
        "tensor-core": (("float16", "implicit-gemm", "float16"), ("tfloat32", "implicit-gemm", "float32")),
        "register-patch": (("float32", "register-tiled", "float32"),),
    },
    "gemm": {
        "tensor-core": (("float16", "register-tiled", "float32"), ("tfloat32", "register-tiled", "float32")),
        "split-k": (("float32", "register-tiled", "float32"),),
    },
}
LARGE_LAYER = "fc1"


def gain(operation: str, step: int, figures: Figures) -> str:
    """Write what a step takes on every network, and how many times as fast as its predecessor it is."""
    rows = [row for _, table in single_layers(figures, operation) for row in table["rows"] if row["ms"]]
    rows = [row for row in rows if row["step"] is not None and row["kind"] != DEBUG]
    name = next((row["name"] for row in rows if row["step"] == step), None)
    if name is None:
        return "Not measured."
    earlier = {row["step"]: row["name"] for row in rows if row["dtype"] == "float32" and 0 < row["step"] < step}
    usual = (("float32", earlier[max(earlier)] if earlier else "", "float32"),)
    versus = SINCE[operation].get(name, usual)
    return filled(" ".join(_sentence(figures, operation, name, *against) for against in versus))


def _sentence(figures: Figures, operation: str, name: str, dtype: str, base: str, base_dtype: str) -> str:
    parts = []
    for bench in figures.benches.values():
        ms, base_ms = (_ms(bench, operation, *pair) for pair in ((name, dtype), (base, base_dtype)))
        if ms is not None:
            gained = speedup(base_ms, ms)
            parts.append(f"`{bench.network}` {format_ms(ms)} ms" + (f" (×{format_factor(gained)})" if gained else ""))
    what = "conv1 + conv2" if operation == "conv" else LARGE_LAYER
    against = f"; brackets show how many times as fast as {base} in {SHORT[base_dtype]}" if base else ""
    first = next(iter(figures.benches.values()))
    items = [table["item"] for table in first.ops] if operation == "conv" else [LARGE_LAYER]
    shares = [f"{share(row)} on {item}" for item in items if (row := first.row(item, name, dtype)) and share(row)]
    peaks = f" Share of the nearer peak on `{first.network}`: {', '.join(shares)}." if shares else ""
    return f"Times in {SHORT[dtype]} for {what}{against}: {', '.join(parts)}.{peaks}"


def _ms(bench: Bench, operation: str, name: str, dtype: str) -> float | None:
    return bench.sum_ms(name, dtype) if operation == "conv" else bench.ms(LARGE_LAYER, name, dtype)
