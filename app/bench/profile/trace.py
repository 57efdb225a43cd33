"""Write a recorded run as a timeline for Perfetto (ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.bench.profile.api_calls import Call
from app.files.writing import replacing

if TYPE_CHECKING:  # needs CuPy
    from app.bench.profile.spans import Span

HOST, CARD = 1, 2  # processes of the timeline


def timeline(spans: Sequence[Span], calls: Sequence[Call], zero: float, card: str) -> dict[str, Any]:
    """Return the trace-event document: a row for the host's API calls, one for each stream; times in microseconds.

    calls: in seconds of the host's clock; zero: that clock's time when the spans' clock was at 0.
    """
    streams = sorted({span.stream for span in spans})
    events: list[dict[str, Any]] = [
        _name(HOST, None, "host"),
        _name(HOST, 0, "API calls"),
        _name(CARD, None, card),
        *(_name(CARD, stream, f"stream {stream + 1}") for stream in streams),
    ]
    events += (
        _event(HOST, 0, call.name, "api", (call.start - zero) * 1e6, (call.stop - call.start) * 1e6, {})
        for call in calls
    )
    for span in spans:
        label = f"{span.layer} ({span.name})" if span.layer else span.name
        details: dict[str, Any] = {"entry": span.entry} if span.entry else {}
        if span.nbytes:
            details |= {"bytes": span.nbytes, "GB/s": span.nbytes / span.ms / 1e6 if span.ms else None}
        category = "kernel" if span.kind == "kernel" else "copy"
        events.append(_event(CARD, span.stream, label, category, span.start * 1e3, span.ms * 1e3, details))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_timeline(document: dict[str, Any], path: Path) -> None:
    """Write the document whole or not at all. Raises UserError."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(document, allow_nan=False) + "\n", encoding="utf-8")


def _name(process: int, thread: int | None, name: str) -> dict[str, Any]:
    """Name a row, or a process."""
    what = {"name": "process_name"} if thread is None else {"name": "thread_name", "tid": thread}
    return {**what, "ph": "M", "pid": process, "args": {"name": name}}


def _event(
    process: int, thread: int, name: str, category: str, start: float, length: float, details: dict[str, Any]
) -> dict[str, Any]:
    where = {"pid": process, "tid": thread, "ts": start, "dur": max(length, 0.0)}
    return {"name": name, "cat": category, "ph": "X", **where, "args": details}
