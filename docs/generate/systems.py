"""Write the blocks of docs/systems.md and docs/benchmarks.md: our times beside those of the fastest other system.

They include losses, and cover every network and precision, on the card and end to end, and accuracies.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from app.images.accuracy import REPORTED
from app.lab.document import Row, first_row
from app.lab.peers.peers import EAGER, JAX, OURS
from app.lab.peers.text import MEASURES
from app.main_job.statistics import speedup
from app.network.definitions import NETWORKS
from app.network.verdicts import COUNTED
from app.terminal.text import format_factor, format_ms
from app.tools.networks import network_entry, shipped_weights
from docs.generate.figures import ONE_IMAGE, PEERS, PEERS_IN_ONE, Figures, command_for_file
from docs.generate.tables import markdown_table, wrap_paragraph

SYSTEMS = tuple(PEERS)  # compared with ours in stored figures; a new network needs no block
NOT_YET = "Not measured yet: run `{}`."
NO_LONGER_TIMED = {"cudnn-graph": "PyTorch with cuDNN's graphs", "onnx-runtime": "ONNX Runtime"}
TITLES = {
    EAGER: "PyTorch",
    "torch-max-autotune": "torch.compile max-autotune",
    "torch-reduce-overhead": "torch.compile reduce-overhead",
    JAX: "JAX",
    **NO_LONGER_TIMED,
}
ON_CARD, END_TO_END = MEASURES
HEADS = [part for title in MEASURES.values() for part in (f"{title}, ms", "fastest other, ms", "×", "which")]
LEAST = {ON_CARD: 3.0, END_TO_END: 2.5}  # times as fast as the fastest peer
LEAST_MLP = LEAST | {END_TO_END: 1.1}  # the bus bounds it
BEYOND_CARD_MS = 0.2  # the largest allowed end-to-end time minus time on the card


class Goal(NamedTuple):
    """A requested time in ms. must: is required. aim: is better still. end_to_end: empty for ``BEYOND_CARD_MS``."""

    network: str
    precision: str
    on_card: tuple[float, ...]
    end_to_end: tuple[float, ...] = ()
    files: Mapping[str, str] = PEERS


GOALS = (
    Goal("lenet5", "fp16", (0.119, 0.110), (0.195, 0.175)),
    Goal("lenet5", "fp32x", (0.25, 0.22), (0.28, 0.24)),
    Goal("lenet5", "int8", (0.105, 0.085), (0.185, 0.165)),
    Goal("lenet5", "fp16", (), (0.018, 0.015), ONE_IMAGE),
    Goal("lenet5", "fp32x", (), (0.030, 0.025), ONE_IMAGE),
    Goal("fa19", "fp16", (1.3, 0.8)),
    Goal("fa19", "fp32x", (3.2, 2.0)),
    Goal("k7", "fp16", (1.7, 1.1)),
    Goal("k7", "fp32x", (4.2, 2.8)),
    Goal("minidnn86", "fp16", (1.0, 0.5)),
    Goal("minidnn86", "fp32x", (1.8, 1.0)),
    Goal("mlp", "fp16", (0.020, 0.012), (0.185, 0.165)),
    Goal("mlp", "fp32x", (0.030, 0.020), (0.185, 0.165)),
)


class Pair(NamedTuple):
    """Our median and that of the fastest peer, in ms, None if missing. peer: its name, precision and setting."""

    ours: float | None
    theirs: float | None
    peer: str

    @property
    def ratio(self) -> float | None:
        """Return the peer's time ÷ ours."""
        return speedup(self.theirs, self.ours)

    @property
    def cells(self) -> list[str]:
        """Return four cells: our time, the peer's, the ratio (bold if we lose) and the peer."""
        factor = format_factor(self.ratio)
        lost = self.ratio is not None and self.ratio < 1
        return [format_ms(self.ours), format_ms(self.theirs), f"**{factor}**" if lost else factor, self.peer]


def our_rows(figures: Figures, file: str) -> dict[str, tuple[Row, Row]]:
    """Return for each precision the document and our row, from the run in which the fastest peer comes closest."""
    later = [name for (network, _), name in PEERS_IN_ONE.items() if PEERS[network] == file]
    documents = [figures.document_or_none(name) for name in (file, *later)]
    found: dict[str, tuple[Row, Row]] = {}
    for document in filter(None, documents):
        for row in (row for row in document["rows"] if row["engine"] == OURS):
            name = row["precision"]
            if name not in found or _fastest_peer_ratio(document, name) < _fastest_peer_ratio(found[name][0], name):
                found[name] = document, row
    return found


def _fastest_peer_ratio(document: Row, precision: str) -> float:
    """Return the fastest peer's time on the card ÷ ours; infinity if no peer was measured."""
    ratio = pair_with_fastest_peer(document, precision, ON_CARD).ratio
    return inf if ratio is None else ratio


def pair_with_fastest_peer(document: Row, precision: str, measure: str) -> Pair:
    """Return our time and the fastest peer's in the precision with which ours is compared."""
    own = first_row(document["rows"], engine=OURS, precision=precision)
    ours = (own.get(measure) or {}).get("p50")
    entry = first_row(document["ratios"], precision=precision)
    best = entry[measure]["best"] if entry else None
    row = first_row(document["rows"], engine=best, precision=entry["against"]) if best else {}
    if best is None or measure not in row:
        return Pair(ours, None, "")
    setting = row.get("settings", {}).get(measure, "")
    about = ", ".join(text for text in (entry["against"], setting) if text)
    return Pair(ours, row[measure]["p50"], f"{TITLES[best]} ({about})")


def network_comparison(network: str, figures: Figures) -> str:
    """Return our times in every precision beside the fastest peer's, and why peers have no times."""
    parts = [_comparison(figures, PEERS[network], f"Whole pass of `{network}`")]
    if network in ONE_IMAGE:
        parts.append(_comparison(figures, ONE_IMAGE[network], f"One image of `{network}`"))
    return "\n\n".join(parts)


def _comparison(figures: Figures, file: str, what: str) -> str:
    title, document = f"{what}, compared with the fastest of the other systems", figures.document_or_none(file)
    if document is None:
        return f"{title}. {NOT_YET.format(command_for_file(file))}"
    rows: list[list[str]] = []
    runs: dict[str, Row] = {document["command"]: document}
    for name, (source, own) in our_rows(figures, file).items():
        runs[source["command"]] = source
        cells = [cell for measure in MEASURES for cell in pair_with_fastest_peer(source, name, measure).cells]
        rows.append([name, *cells] if own[ON_CARD] else [name, own["reason"]])
    where = f"{document['images']:,} images" if document["images"] > 1 else "one image"
    software = ", ".join(
        f"{name} {document['software'][name]}" for name in ("torch", "jax") if name in document["software"]
    )
    dates = ", ".join(sorted({run["date"] for run in runs.values()}))
    about = f"{title} ({where}, {document['device']['name']}, {dates}, {software}):"
    return "\n\n".join([about, markdown_table(["here", *HEADS], rows), *_missing_rows([*runs.values()])])


def _missing_rows(documents: Sequence[Row]) -> Iterator[str]:
    """Yield the rows without times in all documents, with the reason, and the systems without rows."""
    rows = [row for each in documents for row in each["rows"] if row["engine"] != OURS]
    measured = {(row["engine"], row["precision"]) for row in rows if not row["reason"]}
    rows.sort(key=lambda row: not row["reason"].startswith("not tried"))  # the last reason counts: one of a trial
    last = {(row["engine"], row["precision"]): row["reason"] for row in rows}
    reasons: dict[str, dict[str, list[str]]] = {}  # reason → engine → precisions
    for (engine, precision), reason in last.items():
        if (engine, precision) not in measured:
            reasons.setdefault(reason, {}).setdefault(engine, []).append(precision)
    for reason, engines in reasons.items():
        which = "; ".join(f"{TITLES[engine]} in {', '.join(precisions)}" for engine, precisions in engines.items())
        yield wrap_paragraph(f"Not measured in this comparison: {which}. Reason: {reason}.")
    for note in documents[0].get("notes", ()):
        yield wrap_paragraph(
            note.replace(" python main.py", " `python main.py") + "`." if "python main.py" in note else note
        )


def all_networks_table(figures: Figures) -> str:
    """Return the table of docs/benchmarks.md: a row for every network and precision."""
    rows = []
    for name, file in _peer_files():
        for precision, (document, own) in our_rows(figures, file).items():
            if own[ON_CARD]:
                found = [pair_with_fastest_peer(document, precision, measure) for measure in MEASURES]
                cells = [cell for each in found for cell in (*each.cells[:3], each.peer.partition(" (")[0])]
                rows.append([name, precision, *cells])
    return markdown_table(["", "as", *HEADS], rows, 2)


def _peer_files() -> Iterator[tuple[str, str]]:
    for network, file in PEERS.items():
        yield f"`{network}`", file
        if network in ONE_IMAGE:
            yield f"`{network}`, one image", ONE_IMAGE[network]


def goals_table(figures: Figures) -> str:
    """Return each requested time beside ours, and our speed-up over the fastest peer."""
    head = ["network", "as", "", "ms", "must", "aim", "met", "× fastest other", "must", "met"]
    rows = []
    for goal in GOALS:
        document, own = our_rows(figures, goal.files[goal.network]).get(goal.precision, ({}, {}))
        if not own.get(ON_CARD):
            continue
        on_card = pair_with_fastest_peer(document, goal.precision, ON_CARD)
        beyond = ((on_card.ours or 0) + BEYOND_CARD_MS,)
        asked = {ON_CARD: goal.on_card, END_TO_END: goal.end_to_end or beyond}
        one = ", one image" if goal.files is ONE_IMAGE else ""
        for measure, title in ((measure, title) for measure, title in MEASURES.items() if asked[measure]):
            found, times = pair_with_fastest_peer(document, goal.precision, measure), asked[measure]
            least = (LEAST_MLP if goal.network == "mlp" else LEAST)[measure]
            must, aim = f"≤ {times[0]:.3g}", f"{times[1]:.3g}" if len(times) > 1 else ""
            in_time = _yes_or_no(found.ours is not None and found.ours <= times[0])
            ahead = "" if found.ratio is None else _yes_or_no(found.ratio >= least)
            cells = [format_ms(found.ours), must, aim, in_time, format_factor(found.ratio), f"≥ {least:g}", ahead]
            rows.append([f"`{goal.network}`{one}", goal.precision, title, *cells])
    rule = (
        "Each row gives our measured time, with the longest time allowed (must) and a better one (aim), then the time "
        "of the fastest other system in the same precision (fp32x: their fp32) ÷ ours, with the least ratio allowed. "
        "For a network whose requirements name no end-to-end time, the longest one allowed is its measured time on the "
        f"card plus {BEYOND_CARD_MS:g} ms."
    )
    return f"{wrap_paragraph(rule)}\n\n{markdown_table(head, rows, 3)}"


def _yes_or_no(fulfilled: bool) -> str:
    return "yes" if fulfilled else "**no**"


def commands_block(figures: Figures) -> str:
    """Return the command that made every figure outside of kernels.md, or that would make an unmeasured one."""
    makers = []
    for name in (*PEERS.values(), *PEERS_IN_ONE.values(), *ONE_IMAGE.values()):
        document = figures.document_or_none(name) or {}
        command = document.get("command")
        own = f"{command} --overwrite --json docs/benchmarks/{name}" if command else command_for_file(name)
        makers.append(own)
    return "\n".join(["```console", *makers, "python -m docs.generate", "```"])


def network_section(network: str, figures: Figures) -> str:
    """Return the layers of a network, its whole pass beside other systems', and its accuracy."""
    row = network_entry(NETWORKS[network], shipped_weights().get(network))
    size = " × ".join(map(str, row["input"][1:]))
    layers = " → ".join(map(_layer_text, row["layers"]))
    about = f"{size} → {layers}. {row['parameters']:,} parameters, {row['flops'] / 1e6:.2f} MFLOP an image."
    return "\n\n".join(
        [about, network_comparison(network, figures), f"Correct answers:\n\n{correct_labels_table(network)}"]
    )


def correct_labels_table(network: str) -> str:
    """Return the number of correct labels over the first images, of the report and ours."""
    weights = shipped_weights()
    theirs = _format_shares(REPORTED.get(network, {}))
    ours = weights[network].expected_correct if network in weights else {}
    here = (f"{ours[count]:,} ({ours[count] / count:.2%})" if count in ours else "" for count in COUNTED)
    rows = [[f"{count:,}", *shares] for count, *shares in zip(COUNTED, theirs, here, strict=True)]
    return markdown_table(["first images", "report", "our weights here"], rows, 0)


def _layer_text(layer: Row) -> str:
    settings = [name if value is True else f"{name} {value}" for name, value in layer["settings"].items()]
    return layer["kind"] + (f" ({', '.join(settings)})" if settings else "")


def accuracy_table(networks: Iterable[str], _: Figures) -> str:
    """Return for each network the correct labels that its shipped weights promise, and those in its report, if any."""
    weights = shipped_weights()
    rows = []
    for network in networks:
        promised = weights[network].expected_correct if network in weights else {}
        reported = REPORTED.get(network)
        here = "here" if network in weights else "here: not trained yet"
        ours = {str(count): right / count for count, right in promised.items()}
        theirs = "report" if reported else "report: none given"
        rows += [
            [f"`{network}`", here, *_format_shares(ours)],
            [f"`{network}`", theirs, *_format_shares(reported or {})],
        ]
    return markdown_table(["network", "", *(f"first {count:,}" for count in COUNTED)], rows, 2)


def _format_shares(shares: Mapping[str, float]) -> list[str]:
    return [f"{shares[count]:.2%}" if count in shares else "" for count in map(str, COUNTED)]
