"""Print the JSON Schema of a document: ``python -m app.records NAME``."""

import json

from app.base.errors import UserError, choices_hint
from app.base.interrupts import exit_ignoring_signals
from app.records.derive import document_schema, document_types
from app.terminal.console import Parser, run_guarded


def main() -> int:
    """Print the schema of the document that the command line names; return the exit code."""
    parser = Parser(prog=f"python -m {__package__}", description="Print the JSON Schema of a document.")
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join(document_types())}")
    name = parser.parse_args().name
    if name not in document_types():
        raise UserError(f"no document has the name {name}: {choices_hint(name, document_types())}")
    print(json.dumps(document_schema(name), indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    exit_ignoring_signals(run_guarded(main))
