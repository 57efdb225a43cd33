"""The blocks of docs/systems.md, and README's table of accuracies: each system's report beside what is here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.bench.old_reports import Row, beside_old
from app.bench.peers.peers import OURS
from app.commands.networks import describe, shipped_weights
from app.network.accuracy import COUNTED
from app.network.definitions import NETWORKS
from app.precision import BY_NAME
from app.runtime.statistics import speedup
from app.text import format_factor, format_ms
from docs.generate.figures import BENCH, OLD_REPORTS, PEERS, TRAINING, Figures, command_of
from docs.generate.tables import markdown

SYSTEMS = tuple(PEERS)  # compared with ours in stored figures; a further network needs no block
EAGER = "torch-eager"
NOT_YET = "Not measured yet: run `{}`."


def commands(figures: Figures) -> str:
    """Write the command of every figure that kernels.md has not; for one not measured yet, the command to run."""
    makers = []
    for name in (*PEERS.values(), TRAINING):
        document = figures.optional(name) or {}
        own = f"{document['command']} --json docs/benchmarks/{name}" if "command" in document else command_of(name)
        makers.append(own)
    return "\n".join(["```console", *makers, "python -m docs.generate", "```"])


def system(network: str, figures: Figures) -> str:
    """Write the network, its report's op times with ours, its whole pass beside PyTorch's, its accuracy."""
    parts = [_network(network)]
    if network in BENCH:
        title, head, rows = beside_old(figures[BENCH[network]], figures.old[network])
        parts.append(f"{title}\n\n{markdown(head, rows)}")
    parts.append(_whole_pass(network, figures.optional(PEERS[network])))
    parts.append(f"Correct answers:\n\n{_accuracy_table([network], figures)}")
    return "\n\n".join(parts)


def accuracies(figures: Figures) -> str:
    """Write all networks' correct answers beside those of the reports."""
    return _accuracy_table(SYSTEMS, figures)


def _network(network: str) -> str:
    """Layers and sizes."""
    row = describe(NETWORKS[network], shipped_weights().get(network))
    size = " × ".join(map(str, row["input"][1:]))
    layers = " → ".join(_layer(layer) for layer in row["layers"])
    return f"{size} → {layers}. {row['parameters']:,} parameters, {row['flops'] / 1e6:.2f} MFLOP an image."


def _layer(layer: Mapping[str, Any]) -> str:
    settings = [f"{name} {value}" for name, value in layer["settings"].items() if (name, value) != ("stride", 1)]
    return layer["kind"] + (f" ({', '.join(settings)})" if settings else "")


def _accuracy_table(networks: Sequence[str], figures: Figures) -> str:
    """Two rows a network: ours, as its shipped weights promise, and its report's if that has any."""
    old = figures[OLD_REPORTS]["accuracy"]
    weights = shipped_weights()
    rows = []
    for network in networks:
        promised = weights[network].expected_correct if network in weights else {}
        reported = {int(count): share for count, share in old.get(network, {}).items()}
        here = "here" if network in weights else "here: not trained yet"
        rows.append([f"`{network}`", here, *_shares({count: right / count for count, right in promised.items()})])
        rows.append([f"`{network}`", "report" if reported else "report: none given", *_shares(reported)])
    return markdown(["network", "", *(f"first {count:,}" for count in COUNTED)], rows, 2)


def _shares(shares: Mapping[int, float]) -> list[str]:
    return [f"{shares[count]:.2%}" if count in shares else "" for count in COUNTED]


def _whole_pass(network: str, document: Mapping[str, Any] | None) -> str:
    """Ours in every precision, beside PyTorch eager in the precision that is as exact."""
    title = "Whole pass beside PyTorch eager on the same layers"
    if document is None:
        return f"{title}. {NOT_YET.format(command_of(PEERS[network]))}"
    rows = document["rows"]
    lines = []
    for own in rows:
        if own["engine"] != OURS:
            continue
        against = BY_NAME[own["precision"]].peers
        peer = next((row for row in rows if (row["engine"], row["precision"]) == (EAGER, against)), None)
        cells = [_beside(own, peer, measure) for measure in ("on_card_ms", "end_to_end_ms")]
        lines.append([own["precision"], against, *cells[0], *cells[1], own["reason"]])
    head = ["here", "PyTorch", "on the card, ms", "PyTorch ms", "×", "end to end, ms", "PyTorch ms", "×", ""]
    where = f"{document['images']:,} images, {document['device']['name']}, {document['date']}"
    torch = document["software"].get("torch", "")
    return f"{title} ({where}, PyTorch {torch}):\n\n{markdown(head, lines, 2)}"


def _beside(own: Row, peer: Row | None, measure: str) -> list[str]:
    """Our median, the peer's, and how many times as fast ours is."""
    ms = [row[measure]["p50"] if row is not None and row[measure] else None for row in (own, peer)]
    return [format_ms(ms[0]), format_ms(ms[1]), format_factor(speedup(ms[1], ms[0]))]


def training(figures: Figures) -> str:
    """Write the training times of the report on mlp, then ours."""
    old = figures[OLD_REPORTS]["training"]
    rows = [
        [entry["configuration"], f"{entry['cpu']:g}", f"{entry['gpu']:g}", format_factor(entry["cpu"] / entry["gpu"])]
        for entry in old["seconds"]
    ]
    there = f"The report of {old['year']}, three configurations, in seconds:\n\n"
    there += markdown(["configuration", "CPU", "GPU", "×"], rows)
    document = figures.optional(TRAINING)
    if document is None:
        return f"{there}\n\nTraining here. {NOT_YET.format(command_of(TRAINING))}\n\n{_shares_of(old['shares'], {})}"
    return "\n\n".join([there, _trained(document["rows"]), _shares_of(old["shares"], _own_shares(document["shares"]))])


def _trained(rows: Iterable[Mapping[str, Any]]) -> str:
    lines = [
        [
            f"`{row['network']}`",
            "" if row["hidden"] is None else f"{row['hidden']:,}",
            f"{row['batch']:,}",
            f"{row['seconds_per_epoch']:.3g}",
            f"{row['images_per_second']:,.0f}",
            f"{row['numpy_seconds_per_epoch']:.3g}",
            format_factor(row["numpy_seconds_per_epoch"] / row["seconds_per_epoch"]),
            f"{row['device']}; {row['cpu']}",
        ]
        for row in rows
    ]
    head = ["network", "hidden", "batch", "s an epoch", "images/s", "NumPy, s an epoch", "×", "card; processor"]
    return f"Training here, epochs of 60,000 images:\n\n{markdown(head, lines)}"


def _own_shares(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Column title → kernel → share of the card's time."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        hidden = "" if row["hidden"] is None else f" {row['hidden']:,}"
        found.setdefault(f"{row['network']}{hidden}, batch {row['batch']:,}", {})[row["kernel"]] = row["share"]
    return found


def _shares_of(old: Mapping[str, float], own: Mapping[str, Mapping[str, float]]) -> str:
    """Kernel by kernel; those of the report first."""
    kernels = list(dict.fromkeys([*old, *(kernel for shares in own.values() for kernel in shares)]))
    columns = [old, *own.values()]
    rows = [[kernel, *(f"{c[kernel]:.1%}" if kernel in c else "" for c in columns)] for kernel in kernels]
    return f"Share of the kernels' time:\n\n{markdown(['kernel', 'report', *own], rows)}"
