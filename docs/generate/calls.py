"""Write the table of docs/api.md: times of calls of ``Classifier`` and of PyTorch."""

from app.lab.calls.callers import COMPILE, EAGER, OURS
from app.lab.calls.text import TITLES, format_us
from app.lab.document import Row, first_row
from app.terminal.text import format_factor
from docs.generate.figures import CALLS, Figures, command_for_file
from docs.generate.scale import NOT_YET
from docs.generate.tables import markdown_table, wrap_paragraph


def calls_table(figures: Figures) -> str:
    """Return the table: a row for each kind of call, with median times in µs and the best peer's time ÷ ours."""
    document = figures.document_or_none(CALLS)
    if document is None:
        return NOT_YET.format(command_for_file(CALLS))
    software = ", ".join(f"{name} {document['software'][name]}" for name in ("torch",) if name in document["software"])
    about = ", ".join(filter(None, (document["device"]["name"], document["date"], software)))
    head = ["call", "as", TITLES[OURS], "p99", TITLES[EAGER], TITLES[COMPILE], "best ÷ ours"]
    table = markdown_table(head, map(_call_cells, document["rows"]), 2)
    reasons = {
        caller["reason"]: row["what"] for row in document["rows"] for caller in row["callers"] if caller["reason"]
    }
    missing = [wrap_paragraph(f"No times: {what}. Reason: {reason}.") for reason, what in reasons.items()]
    return "\n\n".join([wrap_paragraph(f"The table has the median times of calls in µs ({about})."), table, *missing])


def _call_cells(row: Row) -> list[str]:
    same = row["callers"][1]["precision"]
    found = [first_row(row["callers"], engine=OURS)]
    found += [first_row(row["callers"], engine=engine, precision=same) for engine in (EAGER, COMPILE)]
    ours, eager, compiled = (caller["ms"] or {} for caller in found)
    factor = format_factor(row["ratio"])
    times = [ours.get("p50"), ours.get("p99"), eager.get("p50"), compiled.get("p50")]
    lost = row["ratio"] is not None and row["ratio"] < 1
    return [row["what"], row["precision"], *map(format_us, times), f"**{factor}**" if lost else factor]
