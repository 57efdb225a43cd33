"""Build the HTML page of ``evaluate``, which needs no other file and no network connection."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np

from app.drawing.svg import style_sheet
from app.images.evaluate import drawing
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
from app.records.evaluate import Against, Answers, Evaluate

CHANGES = 100  # the most rows of the table of changed answers
STYLE = Path(__file__).with_name("style.css")
# The page may load nothing: class names from a weights file stay text even if escaping failed.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def build_html_page(document: Evaluate, images: np.ndarray) -> str:
    """Return the page. images: the classified images, (N, C, H, W) uint8 or floats in [0, 1]."""
    parts = [f"<h1>{escape(headline(document))}</h1>", _html_fields(evaluated_fields(document))]
    answers, against, names = document["answers"], document["against"], document["classes"]
    if answers is not None:
        parts += [
            *_answers_section(answers, names, len(images)),
            *_calibration_section(answers),
            *_mistakes_section(answers, names, images),
        ]
    if against is not None:
        parts += _comparison_section(against, names, len(images))
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(headline(document))}</title>\n<style>\n{style_sheet()}{STYLE.read_text(encoding='utf-8')}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )
    return text.encode("utf-8", "backslashreplace").decode()  # file names need not be UTF-8


def _answers_section(answers: Answers, names: Names, images: int) -> list[str]:
    heads = ["class", "images", "precision", "recall", "F1", "most often taken for"]
    return [
        "<h2>Answers</h2>",
        _html_fields(summary_figures(answers, images)),
        _html_table("Scores of each class", heads, class_rows(answers, names), "lrrrrl"),
        "<h2>What is taken for what</h2>",
        "<p>A row is a class, a column an answer. The stronger a cell's colour, the larger its share of the row.</p>",
        _html_figure(drawing.draw_confusion_matrix(answers, names)),
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
        _html_figure(drawing.draw_reliability_diagram(answers)),
        _html_table("Answers by probability", ["probability", "answers", "mean probability", "right"], rows, "lrrr"),
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
        _html_figure(drawing.draw_mistakes(listed, names, images)),
        _html_table("The same as a table", heads, rows, "rllrr"),
    ]


def _comparison_section(other: Against, names: Names, images: int) -> list[str]:
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
        f"<h2>Against {escape(network_title(other))}</h2>",
        f"<p>{other['changed']:,} of {images:,} answers differ.</p>",
        _html_fields(comparison_fields(other, images)),
        _html_table(
            "Answers that changed, by class",
            ["class", "answers", "other's", "left", "came"],
            class_change_rows(other, names),
            "lrrrr",
        ),
        _html_table(caption, ["image", "answer", "other's answer", "label"], changes, "rlll"),
    ]


def _html_fields(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>\n" for name, value in pairs)
    return f"<dl>\n{rows}</dl>" if rows else ""


def _html_figure(picture: str) -> str:
    return f'<figure class="wide">\n{picture}\n</figure>'


def _html_table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], sides: str) -> str:
    """Return an HTML table; empty without rows. sides: ``l`` or ``r`` aligns each column; first cells are heads."""
    kinds = [' class="number"' if side == "r" else "" for side in sides]
    head = "".join(f'<th scope="col"{kind}>{escape(text)}</th>' for kind, text in zip(kinds, heads, strict=True))
    lines = [
        f'<tr><th scope="row"{kinds[0]}>{escape(first)}</th>'
        + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds[1:], cells, strict=True))
        + "</tr>\n"
        for first, *cells in rows
    ]
    if not lines:
        return ""
    inner = f"<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody>"
    return f'<div class="wide"><table>\n{inner}\n</table></div>'
