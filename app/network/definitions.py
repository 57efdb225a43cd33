"""The networks known by name, one file each in ``builtin/``. A new file there adds a network."""

import re
from dataclasses import replace
from pathlib import Path

from app.layers import Linear
from app.network.network import Network
from app.network.toml import read_network

__all__ = ["FA19", "K7", "LENET5", "MINIDNN86", "MLP", "NETWORKS", "Network", "family", "is_listed", "named"]

FOLDER = Path(__file__).with_name("builtin")
SYSTEMS = ("lenet5", "fa19", "k7", "minidnn86", "mlp")  # the seed systems' networks come first


def _builtin() -> dict[str, Network]:
    """Read the network files; return networks by name: the systems in order, then the others alphabetically."""
    others = {path.stem for path in FOLDER.glob("*.toml")}.difference(SYSTEMS)
    return {name: read_network(FOLDER / f"{name}.toml") for name in (*SYSTEMS, *sorted(others))}


NETWORKS = _builtin()
LENET5, FA19, K7, MINIDNN86, MLP = (NETWORKS[name] for name in SYSTEMS)


def family(name: str) -> str:
    """Return the listed network that a name is a variant of: ``mlp_500`` → ``mlp``; other names unchanged."""
    return "mlp" if re.fullmatch(r"mlp_[1-9][0-9]{0,4}", name) else name


def named(name: str) -> Network | None:
    """Find a network by name, None if there is none; ``mlp_500`` is mlp with 500 hidden units."""
    if family(name) == name:
        return NETWORKS.get(name)
    first = next(layer for layer in MLP.layers if isinstance(layer, Linear))
    wider = replace(first, outputs=int(name.removeprefix("mlp_")))
    return replace(MLP, name=name, layers=tuple(wider if layer is first else layer for layer in MLP.layers))


def is_listed(network: Network) -> bool:
    """Return whether a network equals the one listed under its name, whatever file it comes from."""
    found = named(network.name)
    return found is not None and found.digest == network.digest
