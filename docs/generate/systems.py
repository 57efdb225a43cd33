"""Write the blocks of docs/systems.md, and docs/benchmarks.md's table of accuracies."""

from collections.abc import Iterable, Mapping

from app.images.accuracy import REPORTED
from app.lab.document import Row
from app.network.accuracy import COUNTED
from app.network.definitions import NETWORKS
from app.tools.networks import describe, shipped_weights
from docs.generate.figures import (
    ONE_IMAGE,
    PEERS,
    PEERS_IN_ONE,
    Figures,
    command_of,
)
from docs.generate.peers import whole_pass
from docs.generate.tables import markdown

SYSTEMS = tuple(PEERS)  # compared with ours in stored figures; a further network needs no block


def commands(figures: Figures) -> str:
    """Write the command of every figure outside kernels.md; for an unmeasured one, the command to run."""
    makers = []
    for name in (*PEERS.values(), *PEERS_IN_ONE.values(), *ONE_IMAGE.values()):
        document = figures.optional(name) or {}
        command = document.get("command")
        own = f"{command} --overwrite --json docs/benchmarks/{name}" if command else command_of(name)
        makers.append(own)
    return "\n".join(["```console", *makers, "python -m docs.generate", "```"])


def system(network: str, figures: Figures) -> str:
    """Write the network, its whole pass beside others', and its accuracy."""
    row = describe(NETWORKS[network], shipped_weights().get(network))
    size = " × ".join(map(str, row["input"][1:]))
    layers = " → ".join(map(_layer, row["layers"]))
    about = f"{size} → {layers}. {row['parameters']:,} parameters, {row['flops'] / 1e6:.2f} MFLOP an image."
    return "\n\n".join([about, whole_pass(network, figures), f"Correct answers:\n\n{answers(network)}"])


def answers(network: str) -> str:
    """Write correct answers over the first images: the report's, and ours."""
    weights = shipped_weights()
    theirs = _shares(REPORTED.get(network, {}))
    ours = weights[network].expected_correct if network in weights else {}
    here = (f"{ours[count]:,} ({ours[count] / count:.2%})" if count in ours else "" for count in COUNTED)
    rows = [[f"{count:,}", *shares] for count, *shares in zip(COUNTED, theirs, here, strict=True)]
    return markdown(["first images", "report", "our weights here"], rows, 0)


def _layer(layer: Row) -> str:
    settings = [name if value is True else f"{name} {value}" for name, value in layer["settings"].items()]
    return layer["kind"] + (f" ({', '.join(settings)})" if settings else "")


def accuracies(networks: Iterable[str], _: Figures) -> str:
    """Write two rows a network: our correct answers, as its shipped weights promise, and its report's if any."""
    weights = shipped_weights()
    rows = []
    for network in networks:
        promised = weights[network].expected_correct if network in weights else {}
        reported = REPORTED.get(network)
        here = "here" if network in weights else "here: not trained yet"
        ours = {str(count): right / count for count, right in promised.items()}
        theirs = "report" if reported else "report: none given"
        rows += [[f"`{network}`", here, *_shares(ours)], [f"`{network}`", theirs, *_shares(reported or {})]]
    return markdown(["network", "", *(f"first {count:,}" for count in COUNTED)], rows, 2)


def _shares(shares: Mapping[str, float]) -> list[str]:
    return [f"{shares[count]:.2%}" if count in shares else "" for count in map(str, COUNTED)]
