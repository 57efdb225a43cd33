"""What tests of training on the GPU share: which kernels a network needs, and arrays on the card with guards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.network.definitions import Network
from app.training.model import training_model
from app.training.optimisers import OPTIMISERS
from app.training.recipes import RECIPES
from app.training.settings import Settings

GUARD = 64  # elements behind an output that no kernel may touch
Build = tuple[str, tuple[tuple[str, str | int], ...]]  # a kernel's file, and its compile-time constants


def settings_of(network: Network, **changes: Any) -> Settings:
    """The network's recipe, or lenet5's with biases everywhere; with few images."""
    recipe = vars(RECIPES.get(network.name, RECIPES["lenet5"]))
    if network.name not in RECIPES:
        trained = tuple(layer.name for layer in network.layers if layer.kind in ("conv2d", "linear"))
        recipe = {**recipe, "biases": trained, "dropout": (("fc1", 0.3),)}
    own = {"network": network.name, "seed": 3, "images": 40, "validation": 9, "data": "", "batch": 12}
    return Settings(**{**recipe, **own, **changes})


@dataclass
class FakeModule:
    """Stands in for CuPy's: holds no code."""

    def load(self, _: bytes) -> None:
        """Forget it."""

    def get_function(self, _: str) -> None:
        """There is none."""


def builds(network: Network, settings: Settings) -> Iterator[Build]:
    """Everything that an engine compiles for the network, found without a GPU: its arrays are addresses alone."""
    import cupy

    from app.kernels import launch
    from app.training.gpu import network as device_network
    from app.training.gpu import stages
    from app.training.gpu.arena import layout
    from app.training.gpu.kernels import Update

    found: list[Build] = []

    def compiled(path: Path, defines: dict[str, str | int], _: str) -> bytes:
        found.append((path.name, tuple(sorted(defines.items()))))
        return b""

    def memory(nbytes: int) -> Any:
        return cupy.cuda.memory.UnownedMemory(1 << 40, nbytes, None, 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cupy.cuda, "Memory", memory)
        patch.setattr(cupy.cuda.function, "Module", FakeModule)
        patch.setattr(launch, "compile_kernel", compiled)
        for module in (stages, device_network):
            patch.setattr(module, "inference_launch", lambda *_: None)
        model = training_model(network, settings.biases)
        places = layout(model.shapes)
        arena = stages.device_array(places.size, "float32")
        site = stages.Site("sm_90a", 256, places, arena, arena)
        device_network.DeviceNetwork(site, model, settings, None, None)
        Update("sm_90a", places, OPTIMISERS[settings.optimiser](settings.weight_decay), settings.l2)
    return iter(dict.fromkeys(found))


def poisoned(elements: int, dtype: str = "float32") -> Any:
    """A device array of NaN with a guard behind it."""
    from app.cuda.memory import device_array

    array = device_array(elements + GUARD, dtype)
    array.data.memset(0xFF, array.nbytes)
    return array


def fetched(array: Any, shape: Sequence[int]) -> np.ndarray:
    """What a kernel made of a poisoned array, its guard untouched."""
    host = array.get()
    assert (host[-GUARD:].view(np.uint8) == 0xFF).all(), "written behind the output"
    return host[:-GUARD].reshape(shape)
