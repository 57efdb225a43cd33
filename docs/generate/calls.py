"""Write the tables of measured times in docs/api.md (calls of ``Classifier`` and PyTorch) and docs/languages.md."""

from app.lab.calls.callers import COMPILE, EAGER, OURS
from app.lab.calls.text import TITLES, format_us
from app.lab.document import Row, first_row
from app.terminal.text import format_factor
from docs.generate.figures import CALLS, LANGUAGES, Figures, command_for_file
from docs.generate.scale import NOT_YET
from docs.generate.tables import markdown_table, wrap_paragraph
from docs.languages import compare
from docs.languages.text import HEADS, table_rows


def calls_table(figures: Figures) -> str:
    """Return docs/api.md's table: for each kind of call, median times in µs, and the best peer's time ÷ ours."""
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


def language_features_table(figures: Figures) -> str:
    """Return docs/languages.md's table: what each language hides from the programmer, and how many lines it takes."""
    rows = [
        (f"[{one.name}](languages/{one.path.name})", one.hidden, str(one.row()["lines"])) for one in compare.LANGUAGES
    ]
    return markdown_table(["language", "hidden", "lines"], rows, 2)


def language_times_table(figures: Figures) -> str:
    """Return docs/languages.md's table of times, of our kernels and each language, and why some have no times."""
    document = figures.document_or_none(LANGUAGES)
    if document is None:
        return NOT_YET.format(command_for_file(LANGUAGES))
    rows = document["rows"]
    timed = [cells for row, cells in zip(rows, table_rows(rows), strict=True) if row["ms"] is not None]
    reasons = [wrap_paragraph(f"No times: {row['name']}. Reason: {row['reason']}.") for row in rows if row["reason"]]
    versions = {name: text for row in rows for name, text in row["versions"].items()}
    software = ", ".join(f"{name} {text}" for name, text in versions.items())
    about = f"{document['images']:,} images ({document['device']['name']}, {document['date']}, {software})."
    return "\n\n".join([wrap_paragraph(about), markdown_table([*HEADS], timed, 1), *reasons])
