"""Read what the repository stores for the pages: one card's figures in docs/benchmarks/, and docs/learn.md."""

from collections.abc import Iterable

from app.base.errors import UserError
from app.base.precision import OFFERED
from app.files.checks import Check
from app.files.reading import may_exist, read_file, read_json
from app.lab.document import FIGURES, Row
from app.ladder.card import SHOWN, Card
from app.ladder.lessons import all_steps
from app.ladder.markdown import to_html
from app.ladder.pictures import Text
from app.network.definitions import NETWORKS
from app.records.bench import Bench
from app.records.derive import check_of
from app.records.kernels import CompiledKernels, DisassembledKernels
from app.records.profile import Counters, Profile
from app.records.report import Report

LEARN = FIGURES.parent / "learn.md"
# File names, by network or precision.
BENCHES, COUNTED_STEPS = "h100_bench_{}.json", "h100_counters_{}.json"
REPORTED, STAMPED = "h100_lenet5_{}.json", "h100_timeline_lenet5_{}.json"
RESOURCES, INSTRUCTIONS = "kernels_resources.json", "kernels_instructions.json"
FAST = tuple(row.name for row in OFFERED if row.paired and not row.calibrated)  # of the fast path, for any weights
MOST_BYTES = 1 << 20  # of the introduction


def stored_card(network: str) -> Card:
    """Return the stored figures of a network as a card; for one of ``SHOWN``, with all networks. Raises UserError."""
    names = list(dict.fromkeys((network, *(SHOWN if network in SHOWN else ()))))
    path = FIGURES / BENCHES.format(network)
    if not may_exist(path):
        known = [name for name in NETWORKS if may_exist(FIGURES / BENCHES.format(name))]
        raise UserError(f"figures are stored of {', '.join(known) or 'no network'}, not of {network}")
    return Card(
        _read_stored(BENCHES, names, check_of(Bench)),
        stored_kernels(None),
        _read_stored(COUNTED_STEPS, names, check_of(Counters)),
        _read_stored(REPORTED, FAST, check_of(Report)) if network in SHOWN else {},
        _read_stored(STAMPED, FAST, check_of(Profile)) if network in SHOWN else {},
    )


def stored_card_named(network: str, card: str) -> Card | None:
    """Return the stored figures of a network if they are of the card with this name; otherwise None."""
    if not may_exist(FIGURES / BENCHES.format(network)):
        return None
    found = stored_card(network)
    return found if found.device["name"] == card else None


def stored_kernels(arch: str | None) -> Row:
    """Return the stored data on compiled kernels for an architecture; for any architecture if None."""
    found: dict[str, object] = {}
    for name in (RESOURCES, INSTRUCTIONS):
        if may_exist(FIGURES / name):
            one = read_json(FIGURES / name, check_of(CompiledKernels | DisassembledKernels), "restore it")
            found |= one if arch in (None, one["arch"]) else {}
    return found


def introduction_pages() -> list[Text]:
    """Return docs/learn.md as a page, if it exists. Links to steps refer to their pages; other links become text."""
    if not may_exist(LEARN):
        return []
    pages = {step.row.source: f"{step.file_page}.html" for step in all_steps()}
    markdown = read_file(LEARN, MOST_BYTES).decode("utf-8")
    return [Text("learn", "A way in", to_html(markdown, lambda target: pages.get(target.rpartition("/")[2])))]


def _read_stored(pattern: str, names: Iterable[str], check: Check) -> dict[str, Row]:
    paths = {name: FIGURES / pattern.format(name) for name in names}
    return {name: read_json(path, check, "restore it") for name, path in paths.items() if may_exist(path)}
