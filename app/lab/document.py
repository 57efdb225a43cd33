"""Build and format what the JSON documents of several measuring commands share: date, card, title, rows."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.cuda.device import format_bus_address
from app.records.bench import Bench
from app.records.calls import Calls
from app.records.kernels import Ladder
from app.records.languages import Languages
from app.records.parts import Card
from app.records.peers import Peers
from app.terminal.text import fields, paragraph

Row = Mapping[str, Any]
FIGURES = Path(__file__).parents[2] / "docs" / "benchmarks"  # the stored JSON documents of measurements


def utc_date() -> str:
    """Return the current time in the format of the documents: ``2026-11-21 21:06 UTC``."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def describe_card(card: Card) -> str:
    """Return one line with the names and versions of a card, its driver and its libraries."""
    driver = f"driver {card['driver'] or 'unknown'} (CUDA {card['driver_cuda']})"
    which = f"{card['name']} ({format_bus_address(card, ', ')}{card['architecture']})"
    return f"{which}, {driver}, CUDA {card['cuda']}, CuPy {card['cupy']}"


def heading_lines(
    title: str, document: Bench | Calls | Ladder | Languages | Peers, pairs: dict[str, str], width: int
) -> list[str]:
    """Return the first lines of a document's text: title and date, the card, and each (name, text) pair."""
    card = {"card": describe_card(document["device"])}
    return [*paragraph(f"{title}, {document['date']}", width), *fields((card | pairs).items(), width)]


def first_row(rows: Iterable[Row], **values: object) -> Row:
    """Return the first row whose fields have these values; an empty row if there is none."""
    return next((row for row in rows if all(row[name] == value for name, value in values.items())), {})


def fastest_row(rows: Iterable[Row], time: str = "ms") -> Row:
    """Return the row with the shortest time at the key ``time``; an empty row if no row has a time."""
    return min((row for row in rows if row[time]), key=lambda row: row[time], default={})
