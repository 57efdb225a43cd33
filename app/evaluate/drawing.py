"""Draw what ``evaluate`` found as SVG, to stand within a page. The page's style sheet has the classes' colours."""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from app.evaluate.png import as_png
from app.evaluate.text import class_name, percent

Document = Mapping[str, Any]
MOST_NUMBERS = 20  # classes whose counts a matrix still shows as numbers
FULL = 0.75  # opacity of a cell with its whole row: numbers stay readable on it
COLUMNS = 5  # of mistakes


def confusion(document: Document) -> str:
    """Draw the confusion matrix: one cell per label (row) and answer (column), coloured by its share of the row."""
    counts = document["answers"]["confusion"]
    classes = len(counts)
    cell = max(8, min(44, 660 // classes))
    left, top, size = 100, 84, cell * classes
    names = [class_name(document, label) for label in range(classes)]
    parts = [f'<rect class="ground" x="{left}" y="{top}" width="{size}" height="{size}"/>']
    for row, name in enumerate(names):
        middle = row * cell + cell / 2
        if cell >= 12:
            across = f'transform="translate({left + middle + 4:g} {top - 6}) rotate(-40)"'
            parts += [
                _text(_short(name), f'x="{left - 8}" y="{top + middle + 4:g}" text-anchor="end"', name),
                _text(_short(name), across, name),
            ]
        support = sum(counts[row])
        for column, count in enumerate(counts[row]):
            if not count:
                continue
            opacity = FULL * math.sqrt(count / support)
            x, y = left + column * cell, top + row * cell
            told = f"{name} taken for {names[column]}: {count:,} of {support:,}"
            kind = "right" if row == column else "wrong"
            parts.append(
                f'<rect class="{kind}" fill-opacity="{opacity:.3f}" x="{x}" y="{y}" width="{cell}" height="{cell}">'
                f"<title>{escape(told)}</title></rect>"
            )
            if classes <= MOST_NUMBERS:
                parts.append(_text(str(count), f'x="{x + cell / 2:g}" y="{y + cell / 2 + 4:g}" text-anchor="middle"'))
    summary = (
        f"Confusion matrix of {classes} classes, a row per label and a column per answer: "
        f"{document['answers']['correct']:,} of {document['data']['images']:,} are right. The table lists each class."
    )
    return _picture("confusion", left + size + 60, top + size + 10, summary, parts)


def reliability(document: Document) -> str:
    """Draw the share of right answers over their probability, and below it how many answers have that probability."""
    bins, error = document["answers"]["bins"], document["answers"]["calibration"]
    left, top, size, foot = 56, 12, 400, 80
    bottom = top + size + 24 + foot
    most = max(one["images"] for one in bins)
    parts = []
    for tick in range(6):
        share, along = f"{tick * 20}%", tick / 5 * size
        y = top + size - along
        parts += [
            f'<path class="grid" d="M{left} {y:g}h{size}"/>',
            _text(share, f'x="{left - 8}" y="{y + 4:g}" text-anchor="end"'),
            _text(share, f'x="{left + along:g}" y="{bottom + 16}" text-anchor="middle"'),
        ]
    for one in bins:
        if not one["images"]:
            continue
        x, width = left + one["low"] * size + 1, (one["high"] - one["low"]) * size - 2
        told = (
            f"probability {one['low']:.0%} to {one['high']:.0%}: {one['images']:,} answers, {percent(one['accuracy'])} "
            f"right, mean probability {percent(one['confidence'])}"
        )
        end, high = top + size * (1 - one["accuracy"]), one["images"] / most * foot
        parts += [
            f"<g><title>{escape(told)}</title>",
            f'<rect class="bar" x="{x:.1f}" y="{end:.1f}" width="{width:.1f}" height="{top + size - end:.1f}"/>',
            f'<rect class="count" x="{x:.1f}" y="{bottom - high:.1f}" width="{width:.1f}" height="{high:.1f}"/>',
            f'<circle class="dot" cx="{left + one["confidence"] * size:.1f}" cy="{end:.1f}" r="4"/></g>',
        ]
    parts += [
        f'<path class="ideal" d="M{left} {top + size}L{left + size} {top}"/>',
        f'<path class="axis" d="M{left} {top}v{size}h{size}M{left} {bottom}h{size}"/>',
        _text("right answers", f'transform="translate(12 {top + size / 2}) rotate(-90)" text-anchor="middle"'),
        _text("answers", f'transform="translate(12 {bottom - foot / 2}) rotate(-90)" text-anchor="middle"'),
        _text("probability of the answer", f'x="{left + size / 2}" y="{bottom + 36}" text-anchor="middle"'),
    ]
    summary = (
        f"Reliability plot: share of right answers over their probability, in {len(bins)} bins. Expected calibration "
        f"error {percent(error['expected_error'])}, greatest {percent(error['greatest_error'])}."
    )
    return _picture("reliability", left + size + 24, bottom + 44, summary, parts)


def mistakes(document: Document, images: np.ndarray) -> str:
    """Draw the listed mistakes with their images, the most confident first. images: all, (N, C, H, W)."""
    listed = document["answers"]["mistakes"]
    side, width, height = 112, 136, 168
    parts = []
    for place, one in enumerate(listed):
        left, top = place % COLUMNS * width, place // COLUMNS * height
        answer, label = (class_name(document, one[name]) for name in ("answer", "label"))
        told = f"image {one['image']}: {answer} with {percent(one['probability'])}, but it is {label}"
        parts += [
            f"<g><title>{escape(told)}</title>",
            f'<image x="{left}" y="{top}" width="{side}" height="{side}" href="{data_uri(images[one["image"]])}"/>',
            _text(f"{_short(answer)} {one['probability']:.1%}", f'class="answer" x="{left}" y="{top + side + 16}"'),
            _text(f"is {_short(label)} · {one['image']}", f'x="{left}" y="{top + side + 32}"'),
            "</g>",
        ]
    rows = math.ceil(len(listed) / COLUMNS)
    summary = f"The {len(listed)} most confident mistakes. The table below lists them."
    return _picture("mistakes", COLUMNS * width, rows * height - 16, summary, parts)


def data_uri(image: np.ndarray) -> str:
    """Return an image, (C, H, W) uint8 or floats in [0, 1], with C of 1 or 3, as the URI of a PNG."""
    return f"data:image/png;base64,{base64.b64encode(as_png(image)).decode()}"


def _short(name: str, most: int = 14) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _text(text: str, attributes: str, whole: str | None = None) -> str:
    """Return a text element. whole: what a shortened text stands for."""
    title = f"<title>{escape(whole)}</title>" if whole not in (None, text) else ""
    return f"<text {attributes}>{title}{escape(text)}</text>"


def _picture(name: str, width: float, height: float, summary: str, parts: Iterable[str] | Sequence[str]) -> str:
    """Return a drawing with its alternative text."""
    return (
        f'<svg id="{name}" role="img" aria-label="{escape(summary)}" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}">\n' + "\n".join(parts) + "\n</svg>"
    )
