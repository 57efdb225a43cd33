"""Build the HTML page that ``evaluate`` writes: confusion matrix, reliability diagram, mistakes and tables."""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape

import numpy as np

from app.drawing import svg
from app.drawing.matrix import Cell, draw_cells
from app.drawing.page import html_fields, html_figure, html_page, html_table
from app.images.evaluate.text import (
    Names,
    class_change_rows,
    class_name,
    class_rows,
    comparison_fields,
    evaluated_fields,
    format_percent,
    headline,
    network_title,
    summary_figures,
)
from app.records.evaluate import Answers, Evaluate, Mistake, OtherNetwork

MOST_NUMBERS = 20  # the most classes for which a confusion matrix shows counts as text
RIGHT, WRONG = "c1 full", "c2 full"
COLUMNS = 5  # mistakes side by side
SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES = {1: 0, 3: 2}  # channels → PNG's colour type of grey and of RGB


def draw_confusion_matrix(answers: Answers, names: Names) -> str:
    """Return the confusion matrix as SVG: labels are rows, answers are columns, colours show shares of a row."""
    counts = answers["confusion"]
    classes = len(counts)
    side = max(8, min(44, 660 // classes))
    left, top, size = 100, 84, side * classes
    class_names = [class_name(names, label) for label in range(classes)]
    parts = [svg.bar(left, top, size, size, "ground")]
    for row, name in enumerate(class_names if side >= 12 else ()):
        middle = row * side + side / 2
        parts += [
            svg.text(_shorten_name(name), left - 8, top + middle + 4, anchor="end", title=name),
            svg.text(_shorten_name(name), left + middle + 4, top - 6, turned=-40, title=name),
        ]

    def matrix_cell(row: int, column: int) -> Cell | None:
        count, support = counts[row][column], sum(counts[row])
        tooltip = f"{class_names[row]} taken for {class_names[column]}: {count:,} of {support:,}"
        kind, text = RIGHT if row == column else WRONG, str(count) if classes <= MOST_NUMBERS else ""
        return Cell(math.sqrt(count / support), text, tooltip, kind) if count else None

    grid = [[matrix_cell(row, column) for column in range(classes)] for row in range(classes)]
    summary = (
        f"Confusion matrix of {classes} classes, a row per label and a column per answer: "
        f"{answers['correct']:,} of {sum(map(sum, counts)):,} are right. The table lists each class."
    )
    parts += draw_cells(grid, left, top, side, side)
    return svg.picture("confusion", "Confusion matrix", summary, left + size + 60, top + size + 10, parts)


def draw_reliability_diagram(answers: Answers) -> str:
    """Return as SVG the share of correct answers by their probability, and below it the number of answers."""
    bins, error = answers["bins"], answers["calibration"]
    left, top, size, foot = 56, 12, 400, 80
    bottom = top + size + 24 + foot
    x = svg.linear_scale(0, 1, left, left + size)
    y = svg.linear_scale(0, 1, top + size, top)
    shares = [tick / 5 for tick in range(6)]
    parts = svg.horizontal_axis(shares, x, bottom, bottom, lambda share: f"{share:.0%}")
    parts += svg.vertical_axis(shares, y, left, left + size, lambda share: f"{share:.0%}")
    most = max(one["images"] for one in bins)
    for one in bins:
        right, confidence = one["accuracy"], one["confidence"]
        if right is None or confidence is None:
            continue
        start, width = x(one["low"]) + 1, (one["high"] - one["low"]) * size - 2
        tooltip = (
            f"probability {one['low']:.0%} to {one['high']:.0%}: {one['images']:,} answers, "
            f"{format_percent(right)} right, mean probability {format_percent(confidence)}"
        )
        end, high = y(right), one["images"] / most * foot
        parts += [
            svg.bar(start, end, width, y(0) - end, f"{RIGHT} faint", tooltip),
            svg.bar(start, bottom - high, width, high, "c0 full", tooltip),
            svg.dot(x(confidence), end, "point", tooltip),
        ]
    parts += [
        svg.path(f"M{x(0):g} {y(0):g}L{x(1):g} {y(1):g}", "mark dashed"),
        svg.path(f"M{left} {top}v{size}h{size}M{left} {bottom}h{size}", "axis"),
        svg.text("right answers", 12, top + size / 2, anchor="middle", turned=-90),
        svg.text("answers", 12, bottom - foot / 2, anchor="middle", turned=-90),
        svg.text("probability of the answer", left + size / 2, bottom + 36, anchor="middle"),
    ]
    summary = (
        f"Reliability plot: share of right answers over their probability, in {len(bins)} bins. Expected calibration "
        f"error {format_percent(error['expected_error'])}, greatest {format_percent(error['greatest_error'])}."
    )
    return svg.picture("reliability", "Reliability plot", summary, left + size + 24, bottom + 44, parts)


def draw_mistakes(listed: Sequence[Mistake], names: Names, images: np.ndarray) -> str:
    """Return the mistakes with their images as SVG, the most confident first. images: all images, (N, C, H, W)."""
    side, width, height = 112, 136, 168
    parts = []
    for place, one in enumerate(listed):
        left, top = place % COLUMNS * width, place // COLUMNS * height
        answer, label = (class_name(names, one[name]) for name in ("answer", "label"))
        tooltip = f"image {one['image']}: {answer} with {format_percent(one['probability'])}, but it is {label}"
        parts += [
            f"<g><title>{escape(tooltip)}</title>",
            f'<image x="{left}" y="{top}" width="{side}" height="{side}" href="{_data_uri(images[one["image"]])}"/>',
            svg.text(f"{_shorten_name(answer)} {one['probability']:.1%}", left, top + side + 16, "head"),
            svg.text(f"is {_shorten_name(label)} · {one['image']}", left, top + side + 32),
            "</g>",
        ]
    rows = math.ceil(len(listed) / COLUMNS)
    summary = f"The {len(listed)} most confident mistakes. The table below lists them."
    return svg.picture("mistakes", "Mistakes", summary, COLUMNS * width, rows * height - 16, parts)


def _shorten_name(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"


def _data_uri(image: np.ndarray) -> str:
    """Return an image, (C, H, W) uint8 or floats in [0, 1] with C of 1 or 3, as a PNG data URI."""
    return f"data:image/png;base64,{base64.b64encode(_encode_png(image)).decode()}"


def _encode_png(image: np.ndarray) -> bytes:
    """Return an image as the bytes of a PNG file, encoded without a library. image: as for ``_data_uri``."""
    pixels = image if image.dtype == np.uint8 else np.rint(image * 255).astype(np.uint8)
    channels, height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    # A byte before each row names its filter; 0 is none.
    rows = np.pad(pixels.transpose(1, 2, 0).reshape(height, width * channels), ((0, 0), (1, 0)))
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return SIGNATURE + b"".join(_png_chunk(kind, content) for kind, content in chunks)


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


CHANGES = 100  # the most rows of the table of changed answers


def build_html_page(document: Evaluate, images: np.ndarray) -> str:
    """Return the page as HTML. images: the classified images, (N, C, H, W) uint8 or floats in [0, 1]."""
    parts = [html_fields(evaluated_fields(document))]
    answers, against, names = document["answers"], document["against"], document["classes"]
    if answers is not None:
        parts += [
            *_answers_section(answers, names, len(images)),
            *_calibration_section(answers),
            *_mistakes_section(answers, names, images),
        ]
    if against is not None:
        parts += _comparison_section(against, names, len(images))
    return html_page(headline(document), parts)


def _answers_section(answers: Answers, names: Names, images: int) -> list[str]:
    heads = ["class", "images", "precision", "recall", "F1", "most often taken for"]
    return [
        "<h2>Answers</h2>",
        html_fields(summary_figures(answers, images)),
        html_table("Scores of each class", heads, class_rows(answers, names), "lrrrrl"),
        "<h2>What is taken for what</h2>",
        "<p>A row is a class, a column an answer. The stronger a cell's colour, the larger its share of the row.</p>",
        html_figure(draw_confusion_matrix(answers, names)),
    ]


def _calibration_section(answers: Answers) -> list[str]:
    rows = [
        [
            f"{one['low']:.1%} to {one['high']:.1%}",
            f"{one['images']:,}",
            format_percent(one["confidence"]),
            format_percent(one["accuracy"]),
        ]
        for one in answers["bins"]
        if one["images"]
    ]
    return [
        "<h2>How far to trust the probabilities</h2>",
        "<p>Bars: share of right answers among those with this probability. Where probabilities can be "
        "trusted, bars end at the dashed line; bars that end below it: the network is too sure of itself. The lower "
        "bars count the answers.</p>",
        html_figure(draw_reliability_diagram(answers)),
        html_table("Answers by probability", ["probability", "answers", "mean probability", "right"], rows, "lrrr"),
    ]


def _mistakes_section(answers: Answers, names: Names, images: np.ndarray) -> list[str]:
    listed = answers["mistakes"]
    if not listed:
        return ["<h2>Most confident mistakes</h2>", "<p>There are none.</p>"]
    rows = [
        [
            str(one["image"]),
            *(class_name(names, one[name]) for name in ("answer", "label")),
            *(format_percent(one[name]) for name in ("probability", "label_probability")),
        ]
        for one in listed
    ]
    heads = ["image", "answer", "is", "probability of the answer", "of what it is"]
    return [
        "<h2>Most confident mistakes</h2>",
        html_figure(draw_mistakes(listed, names, images)),
        html_table("The same as a table", heads, rows, "rllrr"),
    ]


def _comparison_section(other: OtherNetwork, names: Names, images: int) -> list[str]:
    changes = [
        [
            str(one["image"]),
            *("–" if at is None else class_name(names, at) for at in (one["answer"], one["other"], one["label"])),
        ]
        for one in other["changes"][:CHANGES]
    ]
    caption = "Images whose answer changed"
    if other["changed"] > CHANGES:
        caption = f"The first {CHANGES} of {other['changed']:,} images whose answer changed"
    return [
        f"<h2>Other network {escape(network_title(other))}</h2>",
        f"<p>{other['changed']:,} of {images:,} answers differ.</p>",
        html_fields(comparison_fields(other, images)),
        html_table(
            "Answers that changed, by class",
            ["class", "answers", "other's", "left", "came"],
            class_change_rows(other, names),
            "lrrrr",
        ),
        html_table(caption, ["image", "answer", "other's answer", "label"], changes, "rlll"),
    ]
