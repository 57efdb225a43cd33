"""Write the blocks of docs/systems.md and docs/benchmarks.md: our times beside those of the fastest other system.

The tables cover every network and precision, also those in which we are slower: times on the card and end to end, and
accuracy.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from app.base.precision import BY_NAME, PRECISIONS
from app.images.accuracy import REPORTED
from app.lab.document import Row, first_row
from app.lab.peers.jax import JAX
from app.lab.peers.rounds import DENSE, OURS
from app.lab.peers.text import MEASURES
from app.lab.peers.torch import EAGER, TORCH
from app.main_job.statistics import speedup
from app.network.definitions import NETWORKS
from app.network.verdicts import COUNTED
from app.terminal.text import format_factor, format_ms
from app.tools.networks import network_entry, shipped_weights
from docs.generate.figures import COMPARED, PEERS, SIZES, Figures, command_for_file
from docs.generate.tables import markdown_table, wrap_paragraph

ON_CARD, END_TO_END = MEASURES
HEADS = [part for title in MEASURES.values() for part in (f"{title}, ms", "fastest other, ms", "×", "which")]
WRONG = 0.01  # if a larger share of labels differs from the reference's, it is an error, not rounding
# Network, images, precision → why ours is slower than the fastest peer there.
ON_MMA = "ours runs each convolution by itself, on mma.sync instead of wgmma, and writes float32 between them"
ONE_LAUNCH = "both take about as long as launching; end to end, ours is faster"
WHY_SLOWER: dict[tuple[str, int, str], str] = {
    ("mlp", 10_000, "fp32"): "cuBLAS multiplies float32 faster on CUDA cores than ours",
    ("mlp", 1, "fp32x"): ONE_LAUNCH,
    ("mlp", 1, "tf32"): ONE_LAUNCH,
    ("lenet5", 1, "tf32"): "one image leaves most multiprocessors idle, so latency decides; end to end, ours is faster",
    ("cifar_lenet", 10_000, "tf32"): ON_MMA,
    ("cifar_lenet", 100, "tf32"): "on the card ours is faster; its first kernel waits for a copy of the images",
    ("pytorch_mnist", 10_000, "tf32"): ON_MMA,
}


class PeerTimes(NamedTuple):
    """Our median time and that of the fastest peer, in ms; None if missing. peer: its name, precision and setting."""

    ours: float | None
    theirs: float | None
    peer: str

    @property
    def ratio(self) -> float | None:
        """Return the peer's time ÷ ours; None if one is missing."""
        return speedup(self.theirs, self.ours)

    @property
    def peer_is_faster(self) -> bool:
        """Return whether the peer is faster; False if a time is missing."""
        return self.ratio is not None and self.ratio < 1

    @property
    def table_cells(self) -> list[str]:
        """Return cells: our time, the peer's, their ratio (bold if we are slower), the peer or why there is none."""
        factor = format_factor(self.ratio)
        return [
            format_ms(self.ours),
            format_ms(self.theirs),
            f"**{factor}**" if self.peer_is_faster else factor,
            self.peer,
        ]


def pair_with_fastest_peer(comparison: Row, precision: str, measure: str, setting: str = "") -> PeerTimes:
    """Return our time in ``precision`` and the fastest peer's in the precision that is compared with it.

    measure: a key of ``MEASURES``. setting: ``DENSE`` for our dense kernels on sparse weights, else empty.
    """
    ours = (our_row(comparison, precision, setting).get(measure) or {}).get("p50")
    ratios = [entry for entry in comparison["ratios"] if entry.get("setting", "") == setting]
    entry = first_row(ratios, precision=precision)
    if not entry or entry[measure] is None:
        return PeerTimes(ours, None, entry.get("reason", "") if measure == ON_CARD else "")
    row = first_row(comparison["rows"], setting=entry[measure]["setting"], precision=entry["against"])
    return PeerTimes(ours, (row.get(measure) or {}).get("p50"), peer_title(row) if row else "")


def peer_title(row: Row) -> str:
    """Return the name of a peer and its setting: ``torch.compile max-autotune, contiguous``."""
    compiled = row["engine"] == TORCH and not row["setting"].startswith(EAGER)
    name = "torch.compile" if compiled else {TORCH: "PyTorch", JAX: "JAX"}.get(row["engine"], row["engine"])
    return f"{name} {row['setting']}"


def our_row(comparison: Row, precision: str, setting: str = "") -> Row:
    """Return our row of a comparison; {} if there is none. setting: ``DENSE`` for dense kernels on sparse weights."""
    return first_row(comparison["rows"], engine=OURS, precision=precision, setting=setting)


def _our_settings(comparison: Row, precision: str) -> dict[str, str]:
    """Return setting → title of each of our rows in a precision; dense kernels for sparse weights come last."""
    titles = {"": precision, DENSE: f"{precision}, dense kernels"}
    return {setting: title for setting, title in titles.items() if our_row(comparison, precision, setting)}


def network_comparison(network: str, figures: Figures) -> str:
    """Return the table of our times and the fastest peer's for a network, and why some peers have no times."""
    title = f"The table compares whole passes of `{network}` with the fastest of the other systems"
    stored = [(key, both) for key, both in ordered_comparisons(figures) if key[0] == network]
    if not stored:
        return f"Whole passes of `{network}` beside other systems: {_not_measured_text(network)}"
    parts = []
    for batch in dict.fromkeys((images, card) for (_, images, _, card), _ in stored):
        rows, files, failures = [], dict[str, None](), list[str]()
        for (_, images, precision, card), (file, one) in stored:
            if (images, card) == batch:
                for setting, row_title in _our_settings(one, precision).items():
                    own = our_row(one, precision, setting)
                    pairs = (pair_with_fastest_peer(one, precision, measure, setting) for measure in MEASURES)
                    cells = [cell for pair in pairs for cell in pair.table_cells] if own[ON_CARD] else [own["reason"]]
                    rows.append([row_title, *cells])
                files[file] = None
                failures += _peer_fault_sentences(one)
        documents = [figures[file] for file in files]
        dates = ", ".join(dict.fromkeys(sorted(one["date"] for one in documents)))
        versions = documents[-1]["software"]
        software = ", ".join(f"{name} {versions[name]}" for name in (TORCH, JAX) if name in versions)
        parts += [
            f"{title} ({image_count_text(batch[0])}, {documents[-1]['device']['name']}, {dates}, {software}):",
            markdown_table(["here", *HEADS], rows),
        ]
        parts += dict.fromkeys(failures)
    notes = dict.fromkeys(note for _, (file, _) in stored for note in figures[file]["notes"])
    return "\n\n".join([*parts, *(wrap_paragraph(mark_command_as_code(note)) for note in notes)])


def image_count_text(images: int) -> str:
    """Return a number of images as text, such as ``one image``."""
    return f"{images:,} images" if images > 1 else "one image"


def mark_command_as_code(note: str) -> str:
    """Return a note with the command at its end marked as code."""
    return note.replace(" python main.py", " `python main.py") + "`." if "python main.py" in note else f"{note}."


def _not_measured_text(network: str) -> str:
    return f"Not measured yet: run `{command_for_file(PEERS[network])}`."


def _peer_fault_sentences(comparison: Row) -> Iterator[str]:
    """Yield a sentence for each peer that has no times or that gives wrong labels."""
    images = comparison["images"]
    for row in comparison["rows"]:
        name, _, setting = peer_title(row).partition(" ")
        what = f"{name} in {row['precision']}" + (f" ({setting})" if setting else "")
        if row["engine"] != OURS and row["reason"]:
            yield wrap_paragraph(f"{what} has no times: {row['reason']}.")
        elif row["engine"] != OURS and row["changed"] > WRONG * images:
            count = f"{row['changed']:,} of {image_count_text(images)}"
            yield wrap_paragraph(f"{what} gave other labels than the float64 reference for {count}.")


def all_networks_table(figures: Figures) -> str:
    """Return docs/benchmarks.md's table, with a row per network, batch size and precision, and why peers are faster."""
    rows, slower = [], []
    for (network, images, precision, card), (_, one) in ordered_comparisons(figures):
        what = f"`{network}`, {image_count_text(images)}, {card}"
        for setting, title in _our_settings(one, precision).items():
            own = our_row(one, precision, setting)
            if not own[ON_CARD]:
                continue
            found = [pair_with_fastest_peer(one, precision, measure, setting) for measure in MEASURES]
            rows.append([what, title, *(cell for each in found for cell in each.table_cells)])
            if any(each.peer_is_faster for each in found):
                why = WHY_SLOWER.get((network, images, precision), f"not known; ours ran {own['note']}")
                slower.append(f"- {what}, {title}: {why}{_exact_alternative_text(one, precision)}")
    measured = {network for network, *_ in figures.comparisons}
    missing = [f"- `{network}`: {_not_measured_text(network)}" for network in COMPARED if network not in measured]
    parts = [markdown_table(["", "as", *HEADS], rows, 2)]
    parts += ["Why ours is slower (bold above):", "\n".join(slower)] if slower else []
    return "\n\n".join([*parts, *["\n".join(missing)] * bool(missing)])


def _exact_alternative_text(comparison: Row, precision: str) -> str:
    """Return a phrase on our fastest precision as exact as ``precision`` or more, or "" if slower than the peer."""
    peer = pair_with_fastest_peer(comparison, precision, ON_CARD).theirs
    as_exact = [name for name in PRECISIONS if BY_NAME[name].near_tie <= BY_NAME[precision].near_tie]
    found = {name: (our_row(comparison, name).get(ON_CARD) or {}).get("p50") for name in as_exact}
    other, ours = min(((name, ms) for name, ms in found.items() if ms is not None), key=lambda one: one[1])
    ratio = speedup(peer, ours)
    if ratio is None or ratio < 1 or other == precision:
        return ""
    times = f"{format_ms(ours)} ms on the card, {format_factor(ratio)} × as fast as the peer"
    return f"; {other}, at least as exact, takes {times}"


def ordered_comparisons(figures: Figures) -> list[tuple[tuple[str, int, str, str], tuple[str, Row]]]:
    """Return the items of ``Figures.comparisons``: networks as in ``COMPARED``, then others; large batches first."""
    networks = [*dict.fromkeys((*COMPARED, *(network for network, *_ in figures.comparisons)))]

    def sort_key(item: tuple[tuple[str, int, str, str], object]) -> tuple[int, int, str, int]:
        network, images, precision, card = item[0]
        return networks.index(network), -images, card, PRECISIONS.index(precision)

    return sorted(figures.comparisons.items(), key=sort_key)


def commands_block(figures: Figures) -> str:
    """Return the commands that measured the comparisons, those still to be run, and one that writes the documents."""
    files = {network: file for (network, *_), (file, _) in figures.comparisons.items()}
    makers = [f"python main.py bench --peers --search --network {','.join(COMPARED.values())} --batches {SIZES}"]
    makers += [command_for_file(file) for network, file in PEERS.items() if network not in files]
    for file in dict.fromkeys(file for file, _ in figures.comparisons.values()):
        makers.append(f"{figures[file]['command']} --overwrite --json docs/benchmarks/{file}")
    return "\n".join(["```console", *makers, "python -m docs.generate", "```"])


def network_section(network: str, figures: Figures) -> str:
    """Return the layers of a network, its times beside those of other systems, and its accuracy."""
    row = network_entry(NETWORKS[network], shipped_weights().get(network))
    size = " × ".join(map(str, row["input"][1:]))
    layers = " → ".join(map(_layer_with_settings, row["layers"]))
    work = f"{row['parameters']:,} parameters and takes {row['flops'] / 1e6:.2f} MFLOP per image"
    about = f"{size} → {layers}. The network has {work}."
    return "\n\n".join(
        [about, network_comparison(network, figures), f"Correct answers:\n\n{correct_labels_table(network)}"]
    )


def correct_labels_table(network: str) -> str:
    """Return a table of the correct labels of the first 100, 1,000, … images, by the old report and by this program."""
    weights = shipped_weights()
    theirs = _format_shares(REPORTED.get(network, {}))
    ours = weights[network].expected_correct if network in weights else {}
    here = (f"{ours[count]:,} ({ours[count] / count:.2%})" if count in ours else "" for count in COUNTED)
    rows = [[f"{count:,}", *shares] for count, *shares in zip(COUNTED, theirs, here, strict=True)]
    return markdown_table(["first images", "report", "our weights here"], rows, 0)


def _layer_with_settings(layer: Row) -> str:
    settings = [name if value is True else f"{name} {value}" for name, value in layer["settings"].items()]
    return layer["kind"] + (f" ({', '.join(settings)})" if settings else "")


def accuracy_table(networks: Iterable[str], _: Figures) -> str:
    """Return a table: the share of correct labels stated by each network's weights file, and by its old report."""
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
