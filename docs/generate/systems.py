"""Write the blocks of docs/systems.md, and README's table of accuracies: each system's report beside our figures."""

from collections.abc import Iterable, Mapping

from app.bench.document import Row
from app.bench.old_reports import beside_old
from app.commands.networks import describe, shipped_weights
from app.network.accuracy import COUNTED
from app.network.definitions import NETWORKS
from app.text import format_factor
from docs.generate.figures import (
    BENCH,
    OLD_REPORTS,
    ONE_IMAGE,
    ORIGINALS,
    PEERS,
    PEERS_IN_ONE,
    TRAINING,
    Figures,
    command_of,
)
from docs.generate.peers import NOT_YET, whole_pass
from docs.generate.tables import markdown, table

SYSTEMS = tuple(PEERS)  # compared with ours in stored figures; a further network needs no block


def commands(figures: Figures) -> str:
    """Write the command of every figure outside kernels.md; for an unmeasured one, the command to run."""
    makers = []
    for name in (*PEERS.values(), *PEERS_IN_ONE.values(), *ONE_IMAGE.values(), TRAINING):
        document = figures.optional(name) or {}
        command = document.get("command")
        own = f"{command} --overwrite --json docs/benchmarks/{name}" if command else command_of(name)
        makers.append(own)
    return "\n".join(["```console", *makers, "python -m docs.generate", "```"])


def system(network: str, figures: Figures) -> str:
    """Write the network, its report's op times beside ours, its whole pass beside others', and its accuracy."""
    row = describe(NETWORKS[network], shipped_weights().get(network))
    size = " × ".join(map(str, row["input"][1:]))
    layers = " → ".join(map(_layer, row["layers"]))
    parts = [f"{size} → {layers}. {row['parameters']:,} parameters, {row['flops'] / 1e6:.2f} MFLOP an image."]
    if network in BENCH:
        title, head, rows = beside_old(figures[BENCH[network]], figures.old[network])
        parts.append(f"{title}\n\n{markdown(head, rows)}")
    parts.append(whole_pass(network, figures))
    parts.append(f"Correct answers:\n\n{answers(network, figures)}")
    return "\n\n".join(parts)


def answers(network: str, figures: Figures) -> str:
    """Write correct answers over the first images: the report's, those with its weights here, and ours."""
    weights = shipped_weights()
    reported = figures[OLD_REPORTS]["accuracy"].get(network, {})
    originals = figures[ORIGINALS[network]]["rows"] if network in ORIGINALS else ()
    ours = weights[network].expected_correct if network in weights else {}
    columns = [*(row["correct"] for row in originals), {str(count): right for count, right in ours.items()}]
    head = ["first images", "report", *(f"original weights here, {row['by']}" for row in originals), "our weights here"]
    rows = []
    for count in COUNTED:
        shares = [f"{reported[str(count)]:.2%}" if str(count) in reported else ""]
        here = (column.get(str(count)) for column in columns)
        shares += ["" if right is None else f"{right:,} ({right / count:.2%})" for right in here]
        rows.append([f"{count:,}", *shares])
    return markdown(head, rows, 0)


def _layer(layer: Row) -> str:
    settings = [name if value is True else f"{name} {value}" for name, value in layer["settings"].items()]
    return layer["kind"] + (f" ({', '.join(settings)})" if settings else "")


def accuracies(networks: Iterable[str], figures: Figures) -> str:
    """Write two rows a network: our correct answers, as its shipped weights promise, and its report's if any."""
    weights = shipped_weights()
    rows = []
    for network in networks:
        promised = weights[network].expected_correct if network in weights else {}
        reported = figures[OLD_REPORTS]["accuracy"].get(network)
        here = "here" if network in weights else "here: not trained yet"
        ours = {str(count): right / count for count, right in promised.items()}
        theirs = "report" if reported else "report: none given"
        rows += [[f"`{network}`", here, *_shares(ours)], [f"`{network}`", theirs, *_shares(reported or {})]]
    return markdown(["network", "", *(f"first {count:,}" for count in COUNTED)], rows, 2)


def _shares(shares: Mapping[str, float]) -> list[str]:
    return [f"{shares[count]:.2%}" if count in shares else "" for count in map(str, COUNTED)]


def training(figures: Figures) -> str:
    """Write the training times of the report on mlp, then ours, and the kernels' shares of both."""
    old, document = figures[OLD_REPORTS]["training"], figures.optional(TRAINING)
    seconds = (
        f"{row['configuration']} | {row['cpu']:g} | {row['gpu']:g} | {format_factor(row['cpu'] / row['gpu'])}"
        for row in old["seconds"]
    )
    trained = f"Training here. {NOT_YET.format(command_of(TRAINING))}"
    shares: dict[str, dict[str, float]] = {"report": old["shares"]}  # column → kernel → share of the kernels' time
    if document is not None:
        trained = _trained(document["rows"])
        for row in document["shares"]:
            hidden = "" if row["hidden"] is None else f" {row['hidden']:,}"
            shares.setdefault(f"{row['network']}{hidden}, batch {row['batch']:,}", {})[row["kernel"]] = row["share"]
    kernels = dict.fromkeys(kernel for column in shares.values() for kernel in column)
    rows = [[name, *(f"{c[name]:.1%}" if name in c else "" for c in shares.values())] for name in kernels]
    return "\n\n".join(
        [
            f"The report of {old['year']}, three configurations, in seconds:",
            table("configuration | CPU | GPU | ×", seconds),
            trained,
            f"Share of the kernels' time:\n\n{markdown(['kernel', *shares], rows)}",
        ]
    )


def _trained(rows: Iterable[Row]) -> str:
    head = "network | hidden | batch | s an epoch | images/s | NumPy, s an epoch | × | card; processor"
    lines = (
        f"`{row['network']}` | {'' if row['hidden'] is None else format(row['hidden'], ',')} | {row['batch']:,} | "
        f"{row['seconds_per_epoch']:.3g} | {row['images_per_second']:,.0f} | {row['numpy_seconds_per_epoch']:.3g} | "
        f"{format_factor(row['numpy_seconds_per_epoch'] / row['seconds_per_epoch'])} | {row['device']}; {row['cpu']}"
        for row in rows
    )
    return f"Training here, epochs of 60,000 images:\n\n{table(head, lines)}"
