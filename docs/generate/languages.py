"""Write the tables of docs/languages.md: each language's file and what it hides, and the times on a card."""

from docs.generate.figures import LANGUAGES, Figures, command_for_file
from docs.generate.scale import NOT_YET
from docs.generate.tables import markdown_table, wrap_paragraph
from docs.languages import compare
from docs.languages.text import HEADS, table_rows


def files_table(figures: Figures) -> str:
    """Return a row for each language that has a file: what the language hides, and the file's lines."""
    rows = [
        (f"[{one.name}](languages/{one.path.name})", one.hidden, str(one.row()["lines"])) for one in compare.LANGUAGES
    ]
    return markdown_table(["language", "hidden", "lines"], rows, 2)


def times_table(figures: Figures) -> str:
    """Return a row for our step, our fastest kernel and each language, and why a language has no times."""
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
