"""Format the document of ``evaluate`` as plain text."""

from collections.abc import Sequence

from app.cuda import device
from app.records.evaluate import Answers, Evaluate, EvaluatedNetwork, McNemar, OtherNetwork, Summary
from app.terminal.text import UNLIMITED, WIDTH, Column, fields, paragraph, table

SHOWN = 10  # mistakes, and changed answers
MACRO = {"precision": "precision", "recall": "recall", "f1": "F1"}
Names = Sequence[str] | None  # of the classes


def class_name(names: Names, label: int) -> str:
    """Return the name of a class, or its number if the classes have no names."""
    return str(label) if names is None else names[label]


def format_percent(share: float | None) -> str:
    """Return a share as a percentage; a dash for None."""
    return "–" if share is None else f"{share:.2%}"


def describe_significance(mcnemar: McNemar) -> str:
    """Return the result of McNemar's test in a sentence."""
    if mcnemar["only_first"] == mcnemar["only_second"] == 0:
        return "both are right in the same images"
    p = f"p = {mcnemar['p_value']:.2g}, {mcnemar['test']}"
    if mcnemar["p_value"] < 0.05:
        better = "the first" if mcnemar["only_first"] > mcnemar["only_second"] else "the other"
        return f"{better} is better, and that is hardly chance ({p})"
    return f"the difference may be chance ({p})"


def as_text(document: Evaluate, width: int = WIDTH) -> str:
    """Return the document as text without colours. width: of a line, in characters."""
    answers, against, names = document["answers"], document["against"], document["classes"]
    images = document["data"]["images"]
    blocks = [[*paragraph(headline(document), width), *fields(evaluated_fields(document), width)]]
    if answers is not None:
        blocks += [
            ["Answers", *fields(summary_figures(answers, images), width)],
            _class_table_lines(answers, names, width),
            _confusion_matrix_lines(answers["confusion"], names, width),
            _calibration_lines(answers, width),
            _mistake_lines(answers, names, width),
        ]
    if against is not None:
        heading = f"Other network {network_title(against)}: {against['changed']:,} of {images:,} answers differ"
        blocks += [
            [*paragraph(heading, width), *fields(comparison_fields(against, images), width)],
            _class_change_lines(against, names, width),
            _changed_answer_lines(against, names, width),
        ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def network_title(about: EvaluatedNetwork) -> str:
    """Return the network's name and its precision: ``lenet5 in fp32``."""
    return f"{about['network']['name']} in {about['precision']}"


def headline(document: Evaluate) -> str:
    """Return the line with the network's name, its precision, and the number of images."""
    images = document["data"]["images"]
    return f"{network_title(document)} on {images:,} image{'s' * (images != 1)}"


def evaluated_fields(document: Evaluate) -> list[tuple[str, str]]:
    """Return (name, value) pairs that say what was evaluated: device, weights and images."""
    compared: dict[str, EvaluatedNetwork] = {"": document}
    if document["against"] is not None:
        compared["other "] = document["against"]
    return [
        ("device", device.format_device(document["device"])),
        *(
            (f"{which}weights", f"{one['weights']['path']} (sha256 {one['weights']['sha256'][:12]}…)")
            for which, one in compared.items()
        ),
        ("images", document["data"]["source"]),
    ]


def summary_figures(answers: Summary, images: int) -> list[tuple[str, str]]:
    """Return (name, value) pairs of the summary: top-1 and top-2 accuracy, class averages, calibration error."""
    error, macro = answers["calibration"], answers["macro"]
    return [
        ("top 1", f"{answers['correct']:,} / {images:,} correct = {answers['accuracy']:.2%}"),
        ("top 2", f"{answers['top2_correct']:,} / {images:,} within the first two = {answers['top2_accuracy']:.2%}"),
        ("averages of the classes", ", ".join(f"{MACRO[name]} {share:.2%}" for name, share in macro.items())),
        ("calibration error", f"{error['expected_error']:.2%} expected, {error['greatest_error']:.2%} at most"),
    ]


def _class_table_lines(answers: Answers, names: Names, width: int) -> list[str]:
    columns = [
        Column("class", left=True),
        *map(Column, ("images", "precision", "recall", "F1")),
        Column("taken for", left=True),
    ]
    return ["Classes", *table(columns, class_rows(answers, names), width)]


def class_rows(answers: Answers, names: Names) -> list[list[str]]:
    """Return a table row for each class: name, images, scores, and the most frequent wrong answer for its images."""
    return [
        [
            numbered_class_name(names, label),
            f"{score['support']:,}",
            *map(format_percent, (score["precision"], score["recall"], score["f1"])),
            _most_frequent_mistake(row, label, names),
        ]
        for label, (score, row) in enumerate(zip(answers["classes"], answers["confusion"], strict=True))
    ]


def numbered_class_name(names: Names, label: int) -> str:
    """Return the number of a class and its name, if it has one."""
    return str(label) if names is None else f"{label} {names[label]}"


def _most_frequent_mistake(row: Sequence[int], label: int, names: Names) -> str:
    """Return the most frequent wrong answer for the images of a class, and its count; empty without mistakes."""
    wrong = [0 if answer == label else count for answer, count in enumerate(row)]
    most = max(wrong)
    return f"{class_name(names, wrong.index(most))} ({most:,})" if most else ""


def _confusion_matrix_lines(counts: Sequence[Sequence[int]], names: Names, width: int) -> list[str]:
    """Return the lines of the confusion matrix, or one that says that the matrix is too wide for the terminal."""
    heading = "Confusion matrix (rows: labels; columns: answers)"
    columns = [Column("", left=True), *(Column(str(label)) for label in range(len(counts)))]
    rows = [
        [numbered_class_name(names, at), *(str(count) if count else "·" for count in row)]
        for at, row in enumerate(counts)
    ]
    lines = [*paragraph(heading, width), *table(columns, rows, UNLIMITED)]
    if max(map(len, lines)) <= width:
        return lines
    return paragraph(f"{heading}: too wide for this terminal; --wide prints it, --json and --html contain it", width)


def _calibration_lines(answers: Answers, width: int) -> list[str]:
    columns = [*map(Column, ("probability", "images", "mean", "correct", "difference"))]
    rows = [
        [
            f"{one['low']:.0%} to {one['high']:.0%}",
            f"{one['images']:,}",
            format_percent(one["confidence"]),
            format_percent(one["accuracy"]),
            f"{(one['accuracy'] - one['confidence']) * 100:+.2f}",
        ]
        for one in answers["bins"]
        if one["accuracy"] is not None and one["confidence"] is not None
    ]
    return ["Calibration: answers by their probability", *table(columns, rows, width)]


def _mistake_lines(answers: Answers, names: Names, width: int) -> list[str]:
    mistakes = answers["mistakes"]
    columns = [Column("image"), *(Column(head, left=True) for head in ("label", "answer")), Column("probability")]
    rows = [
        [
            str(one["image"]),
            *(class_name(names, one[name]) for name in ("label", "answer")),
            format_percent(one["probability"]),
        ]
        for one in mistakes[:SHOWN]
    ]
    lines = _titled_table("Most confident mistakes", columns, rows, width)
    return lines + _omitted_line(len(mistakes), "in --json and --html")


def _titled_table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return the lines of a title and a table; no lines if there are no rows."""
    return [title, *table(columns, rows, width)] if rows else []


def _omitted_line(count: int, where: str) -> list[str]:
    return [f"  … and {count - SHOWN:,} more ({where})"] if count > SHOWN else []


def comparison_fields(other: OtherNetwork, images: int) -> list[tuple[str, str]]:
    """Return (name, value) pairs of the other network's summary and of McNemar's test; none without labels."""
    test = other["mcnemar"]
    if other["answers"] is None or test is None:
        return []
    counts = (
        f"both right {test['both_right']:,}, only the first {test['only_first']:,}, "
        f"only the other {test['only_second']:,}, both wrong {test['both_wrong']:,}"
    )
    return [*summary_figures(other["answers"], images), ("McNemar", counts), ("verdict", describe_significance(test))]


def _class_change_lines(other: OtherNetwork, names: Names, width: int) -> list[str]:
    columns = [Column("class", left=True), *map(Column, ("answers", "other's", "left", "came"))]
    return _titled_table("Answers that changed, by class", columns, class_change_rows(other, names), width)


def class_change_rows(other: OtherNetwork, names: Names) -> list[list[str]]:
    """Return a row per class with changed answers: its name, answers of each network, answers of only one of them."""
    return [
        [numbered_class_name(names, at), *(f"{one[name]:,}" for name in ("answers", "other_answers", "left", "came"))]
        for at, one in enumerate(other["classes"])
        if one["left"] or one["came"]
    ]


def _changed_answer_lines(other: OtherNetwork, names: Names, width: int) -> list[str]:
    columns = [Column("image"), *(Column(head, left=True) for head in ("answer", "other's", "label"))]
    rows = [
        [
            str(one["image"]),
            *("" if at is None else class_name(names, at) for at in (one["answer"], one["other"], one["label"])),
        ]
        for one in other["changes"][:SHOWN]
    ]
    lines = _titled_table("First images whose answer changed", columns, rows, width)
    return lines + _omitted_line(other["changed"], "--json lists the first 1,000")
