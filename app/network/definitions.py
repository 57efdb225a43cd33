"""Provide the networks that are known by name, one file each in ``builtin/``. A new file there adds a network."""

import re
from collections import UserDict
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.layers import Linear
from app.network.network import Network
from app.network.toml import read_network

FOLDER = Path(__file__).with_name("builtin")
SYSTEMS = ("lenet5", "fa19", "k7", "minidnn86", "mlp")  # the seed systems' networks come first


class _ListedNetworks(UserDict[str, Any]):
    """The networks in ``builtin/`` by name, read at first use: those in SYSTEMS, then the others alphabetically."""

    def __getitem__(self, name: str) -> Network:
        if self.data[name] is None:
            self.data[name] = read_network(FOLDER / f"{name}.toml")
        return self.data[name]


_others = {path.stem for path in FOLDER.glob("*.toml")}.difference(SYSTEMS)
NETWORKS = _ListedNetworks(dict.fromkeys((*SYSTEMS, *sorted(_others))))
LENET5: Network
FA19: Network
K7: Network
MINIDNN86: Network
MLP: Network


def __getattr__(name: str) -> Network:
    if name.isupper() and name.lower() in SYSTEMS:
        return NETWORKS[name.lower()]
    raise AttributeError(name)


def network_family(name: str) -> str:
    """Return the name of the listed network of which ``name`` is a variant: ``mlp`` for ``mlp_500``; else ``name``."""
    return "mlp" if re.fullmatch(r"mlp_[1-9][0-9]{0,4}", name) else name


def network_by_name(name: str) -> Network | None:
    """Return the network with this name, or None if there is none. ``mlp_500`` is mlp with 500 hidden units."""
    if network_family(name) == name:
        return NETWORKS.get(name)
    mlp = NETWORKS["mlp"]
    first = next(layer for layer in mlp.layers if isinstance(layer, Linear))
    wider = replace(first, outputs=int(name.removeprefix("mlp_")))
    return replace(mlp, name=name, layers=tuple(wider if layer is first else layer for layer in mlp.layers))


def is_listed_network(network: Network) -> bool:
    """Return whether a network equals the listed network of its name, whatever file it comes from."""
    found = network_by_name(network.name)
    return found is not None and found.digest == network.digest
