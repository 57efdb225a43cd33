"""The accuracy check in the report: as plain data, and as text in which no verdict can be taken for the other."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.network.accuracy import Accuracy
from app.runtime.result import Cycle
from app.text import fields

VERDICTS = {True: "PASSED", False: "FAILED", None: "not judged"}
SHOWN_DIFFERENCES = 10


def verdicts(accuracy: Accuracy, cycle: Cycle | None) -> dict[str, Any]:
    """Return the report's fields ``passed``, ``agreement`` and ``accuracy``. With a cycle, its answers are counted."""
    agreement, answers = accuracy.agreement, accuracy.answers
    return {
        "passed": accuracy.passed,
        "agreement": {
            "passed": agreement.holds,
            "verdict": agreement.verdict,
            "reference": agreement.source,
            "compared": agreement.compared,
            "near_ties_allowed": agreement.most,
            "differences": [vars(difference) for difference in agreement.differences],
        },
        "accuracy": {
            "passed": answers.passed,
            "verdict": answers.verdict,
            "warning": answers.warning,
            "correct": answers.correct if cycle is None else cycle.correct,
            "total": answers.total if cycle is None else cycle.total,
            "expected": answers.expected if cycle is None else None,
            "least": answers.least,
        },
    }


def verdict_lines(report: Mapping[str, Any], width: int) -> list[str]:
    """Return these fields as text. A warning replaces the note that nothing was asked of the answers."""
    agreement, answers = report["agreement"], report["accuracy"]
    correct, total = answers["correct"], answers["total"]
    share = "unlabelled" if correct is None else f"{correct:,} / {total:,} correct = {correct / total:.2%}"
    pairs = []
    if answers["passed"] is not None or not answers["warning"]:
        pairs.append(("answers", f"{VERDICTS[answers['passed']]}: {answers['verdict']}"))
    if answers["warning"]:
        pairs.append(("answers", f"WARNING: {answers['warning']}"))
    pairs.append(("agreement", f"{VERDICTS[agreement['passed']]}: {agreement['verdict']}"))
    return [f"Accuracy: {share}", *fields(pairs, width), *difference_lines(agreement["differences"])]


def difference_lines(differences: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each of the first labels that differ from the reference's."""
    lines = []
    for difference in differences[:SHOWN_DIFFERENCES]:
        kind = "near-tie" if difference["excused"] else "WRONG"
        lines.append(
            f"  image {difference['index']}: {difference['label']} instead of {difference['reference']}, "
            f"float64 margin {difference['margin']:.3g} ({kind})"
        )
    if len(differences) > SHOWN_DIFFERENCES:
        lines.append(f"  … and {len(differences) - SHOWN_DIFFERENCES} more (all in --json)")
    return lines
