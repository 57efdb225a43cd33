"""Provide common parts of tests of training on the GPU: a network's kernels, and guarded device arrays."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from app.cuda.compiler import compile_kernel
from app.kernels.train.train import FOLDER
from app.network.definitions import Network
from app.network.toml import network_toml
from app.training.model import make_training_model
from app.training.optimisers import build_optimiser
from app.training.settings import RECIPES, Settings

GUARD = 64  # elements behind an output that no kernel may touch
Build = tuple[str, tuple[tuple[str, str | int], ...]]  # a kernel, and its compile-time constants


def settings_of(network: Network, **changes: Any) -> Settings:
    """Return settings for few images: the network's recipe, or else lenet5's with biases in all layers."""
    recipe = RECIPES.get(network.name)
    if recipe is None:
        trained = tuple(layer.name for layer in network.layers if layer.kind in ("conv2d", "linear"))
        recipe = replace(RECIPES["lenet5"], biases=trained, dropout=(("fc1", 0.3),) if "fc1" in trained else ())
    own = {"network": network.name, "definition": network_toml(network), "seed": 3, "data": ""}
    own |= {"images": 40, "validation": 9, "batch": 12}
    return Settings(**(vars(recipe) | own | changes))


@contextmanager
def recorded() -> Iterator[list[Build]]:
    """Record kernels in the block instead of compiling them, so that no GPU is needed; yield the records."""
    from app.training.gpu import kernels, products, stages, trainer

    found: list[Build] = []

    def record(name: str, defines: Mapping[str, str | int], arch: str, *, threads: int) -> Any:
        found.append((name, tuple(sorted(defines.items()))))
        return lambda *_: None

    replaced: dict[str, Any] = {
        "training_kernel": record,
        "device_array": np.empty,
        "inference_launch": lambda *_: None,
    }
    with pytest.MonkeyPatch.context() as patch:
        for module in (trainer, kernels, products, stages):
            for name in replaced.keys() & vars(module).keys():
                patch.setattr(module, name, replaced[name])
        yield found


def builds(network: Network, settings: Settings) -> list[Build]:
    """Return all builds that a trainer compiles for the network before its first batch."""
    from app.training.gpu.kernels import ParameterUpdate, arena_layout
    from app.training.gpu.stages import StageContext
    from app.training.gpu.trainer import DeviceNetwork

    model = make_training_model(network, settings.biases)
    places = arena_layout(model.shapes)
    arena = np.empty(places.size, np.float32)
    with recorded() as found:
        site = StageContext("sm_90a", 256, places, arena, arena)
        DeviceNetwork(site, model, settings, None, None)
        ParameterUpdate("sm_90a", places, build_optimiser(settings), settings.l2)
    return found


def compile_all(jobs: Iterable[tuple[Build, str]]) -> list[tuple[str, bytes]]:
    """Compile each kernel for its architecture into the cache, on all cores; return (name, machine code) of each."""

    def compiled(job: tuple[Build, str]) -> tuple[str, bytes]:
        (name, constants), arch = job
        return f"train_{name}", compile_kernel(FOLDER / f"train_{name}.cu", dict(constants), arch)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compiled, jobs))


def poisoned(elements: int, dtype: str = "float32") -> Any:
    """Return a device array filled with NaN, with a guard area behind it."""
    from app.cuda.memory import device_array

    array = device_array(elements + GUARD, dtype)
    array.data.memset(0xFF, array.nbytes)
    return array


def fetched(array: Any, shape: Sequence[int]) -> np.ndarray:
    """Return an array's content on the host, (shape); check that its guard area, if any, is unchanged."""
    host, size = array.get(), prod(shape)
    assert (host[size:].view(np.uint8) == 0xFF).all(), "written behind the output"
    return host[:size].reshape(shape)
