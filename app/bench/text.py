"""Times, ratios and aligned columns as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same for a terminal: padded, the first column to the left."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in (head, *rows)]
    return "\n".join(
        f"  {line[0].ljust(widths[0])}{text[widths[0] :]}".rstrip()
        for line, text in zip((head, *rows), lines, strict=True)
    )


def time(ms: float | None) -> str:
    """ms to four figures or so; empty where there is no time."""
    if ms is None:
        return ""
    return f"{ms:,.0f}" if ms >= 1000 else f"{ms:.1f}" if ms >= 100 else f"{ms:.2f}" if ms >= 10 else f"{ms:.4f}"


def times(ratio: float | None) -> str:
    """How many times as fast."""
    if ratio is None:
        return ""
    if ratio < 0.1:
        return f"{ratio:.1g}"
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def ratio(before: float | None, after: float | None) -> float | None:
    """How many times as fast ``after`` is; None if a time is missing."""
    return before / after if before and after else None
