"""The document of ``evaluate`` as plain text."""

from collections.abc import Sequence
from typing import cast

from app.cuda import device
from app.records.evaluate import Against, Answers, Evaluate, McNemar, Subject, Summary
from app.terminal.text import UNLIMITED, WIDTH, Column, fields, paragraph, table

SHOWN = 10  # mistakes and changes


def answers_of(document: Evaluate) -> Answers:
    """Return the answers of a document with labels."""
    return cast(Answers, document["answers"])


def against_of(document: Evaluate) -> Against:
    """Return the comparison of a document with one."""
    return cast(Against, document["against"])


def class_name(document: Evaluate, label: int) -> str:
    """Return the class's name, or its number if the classes have no names."""
    names = document["classes"]
    return str(label) if names is None else names[label]


def percent(share: float | None) -> str:
    """Format a share as a percentage; a dash for None."""
    return "–" if share is None else f"{share:.2%}"


def significance(mcnemar: McNemar) -> str:
    """Tell in a sentence what McNemar's test found."""
    if mcnemar["only_first"] == mcnemar["only_second"] == 0:
        return "both are right in the same images"
    p = f"p = {mcnemar['p_value']:.2g}, {mcnemar['test']}"
    if mcnemar["p_value"] < 0.05:
        better = "the first" if mcnemar["only_first"] > mcnemar["only_second"] else "the other"
        return f"{better} is better, and that is hardly chance ({p})"
    return f"the difference may be chance ({p})"


def as_text(document: Evaluate, width: int = WIDTH) -> str:
    """Return the document as text without colours. width: columns of a line."""
    blocks = [_head(document, width)]
    if document["answers"] is not None:
        blocks += [
            _answers(document, width),
            _classes(document, width),
            _confusion(document, width),
            _calibration(document, width),
            _mistakes(document, width),
        ]
    if document["against"] is not None:
        blocks += [_against(document, width), _moves(document, width), _changes(document, width)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def title(about: Subject) -> str:
    """Name a network and its precision: ``lenet5 in fp32``."""
    return f"{about['network']['name']} in {about['precision']}"


def headline(document: Evaluate) -> str:
    """Name the network, its precision, and how many images it classified."""
    images = document["data"]["images"]
    return f"{title(document)} on {images:,} image{'s' * (images != 1)}"


def head_fields(document: Evaluate) -> list[tuple[str, str]]:
    """Return what was evaluated: names and values."""
    compared: dict[str, Subject] = {"": document}
    if document["against"] is not None:
        compared["other "] = document["against"]
    return [
        ("device", device.as_text(document["device"])),
        *(
            (f"{which}weights", f"{one['weights']['path']} (sha256 {one['weights']['sha256'][:12]}…)")
            for which, one in compared.items()
        ),
        ("images", document["data"]["source"]),
    ]


def figures(answers: Summary, images: int) -> list[tuple[str, str]]:
    """Return the figures that one line each can tell: names and values."""
    error = answers["calibration"]
    return [
        ("top 1", f"{answers['correct']:,} / {images:,} correct = {answers['accuracy']:.2%}"),
        ("top 2", f"{answers['top2_correct']:,} / {images:,} within the first two = {answers['top2_accuracy']:.2%}"),
        (
            "averages of the classes",
            ", ".join(f"{NAMES[name]} {share:.2%}" for name, share in answers["macro"].items()),
        ),
        ("calibration error", f"{error['expected_error']:.2%} expected, {error['greatest_error']:.2%} at most"),
    ]


NAMES = {"precision": "precision", "recall": "recall", "f1": "F1"}


def _head(document: Evaluate, width: int) -> list[str]:
    return [*paragraph(headline(document), width), *fields(head_fields(document), width)]


def _answers(document: Evaluate, width: int) -> list[str]:
    return ["Answers", *fields(figures(answers_of(document), document["data"]["images"]), width)]


def _classes(document: Evaluate, width: int) -> list[str]:
    columns = [
        Column("class", left=True),
        *map(Column, ("images", "precision", "recall", "F1")),
        Column("taken for", left=True),
    ]
    return ["Classes", *table(columns, class_rows(document), width)]


def class_rows(document: Evaluate) -> list[list[str]]:
    """Return a row for each class: its name, images, scores, and the wrong answer that its images get most often."""
    return [
        [
            numbered(document, label),
            f"{score['support']:,}",
            *map(percent, (score["precision"], score["recall"], score["f1"])),
            confused_with(document, label),
        ]
        for label, score in enumerate(answers_of(document)["classes"])
    ]


def numbered(document: Evaluate, label: int) -> str:
    """Return the class's number and its name, if it has one."""
    return str(label) if document["classes"] is None else f"{label} {document['classes'][label]}"


def confused_with(document: Evaluate, label: int) -> str:
    """Return the most frequent wrong answer to the class's images, and how often it came; empty without mistakes."""
    row = answers_of(document)["confusion"][label]
    wrong = [0 if answer == label else count for answer, count in enumerate(row)]
    most = max(wrong)
    return f"{class_name(document, wrong.index(most))} ({most:,})" if most else ""


def _confusion(document: Evaluate, width: int) -> list[str]:
    return _matrix(
        document, answers_of(document)["confusion"], "Confusion matrix (rows: labels; columns: answers)", width
    )


def _matrix(document: Evaluate, counts: Sequence[Sequence[int]], heading: str, width: int) -> list[str]:
    """Format counts by class; where they do not fit, say so."""
    columns = [Column("", left=True), *(Column(str(label)) for label in range(len(counts)))]
    rows = [[numbered(document, at), *(str(count) if count else "·" for count in row)] for at, row in enumerate(counts)]
    lines = [*paragraph(heading, width), *table(columns, rows, UNLIMITED)]
    if max(map(len, lines)) <= width:
        return lines
    return paragraph(f"{heading}: too wide for this terminal; --wide prints it, --json and --html contain it", width)


def _calibration(document: Evaluate, width: int) -> list[str]:
    columns = [*map(Column, ("probability", "images", "mean", "correct", "difference"))]
    rows = [
        [
            f"{one['low']:.0%} to {one['high']:.0%}",
            f"{one['images']:,}",
            percent(one["confidence"]),
            percent(one["accuracy"]),
            f"{(one['accuracy'] - one['confidence']) * 100:+.2f}",
        ]
        for one in answers_of(document)["bins"]
        if one["accuracy"] is not None and one["confidence"] is not None
    ]
    return ["Calibration: answers by their probability", *table(columns, rows, width)]


def _mistakes(document: Evaluate, width: int) -> list[str]:
    mistakes = answers_of(document)["mistakes"]
    columns = [Column("image"), *(Column(head, left=True) for head in ("label", "answer")), Column("probability")]
    rows = [
        [
            str(one["image"]),
            *(class_name(document, one[name]) for name in ("label", "answer")),
            percent(one["probability"]),
        ]
        for one in mistakes[:SHOWN]
    ]
    heading = "Most confident mistakes"
    return [heading, *table(columns, rows, width), *_more(len(mistakes), "in --json and --html")] if rows else []


def _more(count: int, where: str) -> list[str]:
    return [f"  … and {count - SHOWN:,} more ({where})"] if count > SHOWN else []


def _against(document: Evaluate, width: int) -> list[str]:
    other, images = against_of(document), document["data"]["images"]
    heading = f"Against {title(other)}: {other['changed']:,} of {images:,} answers differ"
    return [*paragraph(heading, width), *fields(comparison_fields(document), width)]


def comparison_fields(document: Evaluate) -> list[tuple[str, str]]:
    """Return how the other one answers, and McNemar's counts; empty without labels."""
    other, images = against_of(document), document["data"]["images"]
    test = other["mcnemar"]
    if other["answers"] is None or test is None:
        return []
    counts = (
        f"both right {test['both_right']:,}, only the first {test['only_first']:,}, "
        f"only the other {test['only_second']:,}, both wrong {test['both_wrong']:,}"
    )
    return [*figures(other["answers"], images), ("McNemar", counts), ("verdict", significance(test))]


def _moves(document: Evaluate, width: int) -> list[str]:
    columns = [Column("class", left=True), *map(Column, ("answers", "other's", "left", "came"))]
    rows = move_rows(document)
    return ["Answers that changed, by class", *table(columns, rows, width)] if rows else []


def move_rows(document: Evaluate) -> list[list[str]]:
    """Return a row for each class with changed answers: its name, answers of both, those that left and came."""
    return [
        [numbered(document, at), *(f"{one[name]:,}" for name in ("answers", "other_answers", "left", "came"))]
        for at, one in enumerate(against_of(document)["classes"])
        if one["left"] or one["came"]
    ]


def _changes(document: Evaluate, width: int) -> list[str]:
    other = against_of(document)
    columns = [Column("image"), *(Column(head, left=True) for head in ("answer", "other's", "label"))]
    rows = [
        [
            str(one["image"]),
            *("" if at is None else class_name(document, at) for at in (one["answer"], one["other"], one["label"])),
        ]
        for one in other["changes"][:SHOWN]
    ]
    heading = "First images whose answer changed"
    return (
        [heading, *table(columns, rows, width), *_more(other["changed"], "--json lists the first 1,000")]
        if rows
        else []
    )
