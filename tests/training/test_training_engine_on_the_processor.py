"""The engine of the card with its kernels run by the processor: some of the card's tests, on a small network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
import cupy

from app.layers import Layer, Shape
from app.network.definitions import Network
from app.training.gpu import arena, engine, kernels, network, products, stages
from tests.support.host_kernels import COMPILER, HostArray, HostFunction, uploaded
from tests.support.networks_for_tests import POOLED
from tests.training import test_gpu_training as card


class Stream:
    """Everything on it is done at once."""

    ptr = 0
    null: Stream

    def __init__(self, non_blocking: bool = False) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...

    def synchronize(self) -> None:
        """It is."""


Stream.null = Stream()


def device_array(elements: int, dtype: str) -> HostArray:
    """NaN, or no place in any array."""
    return uploaded(np.full(elements * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype))


def inference_launch(site: Any, layer: Layer, shape: Shape, x: Any, y: Any, dtype: str) -> Callable[[int, int], None]:
    """The layer's reference in place of its kernel, which has tests of its own."""

    def launch(_: int, images: int) -> None:
        inputs = np.array(x[: images * int(np.prod(shape))]).reshape(images, *shape)
        result = layer.reference(inputs, {})
        y[: result.size] = result.ravel()

    return launch


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The processor in the card's place."""
    if COMPILER is None:
        pytest.skip("g++ is not installed")
    HostFunction.folder = tmp_path_factory.mktemp("host_engine")
    replaced = {
        "training_kernel": HostFunction,
        "device_array": device_array,
        "uploaded": uploaded,
        "pinned_array": np.empty,
        "capability": lambda: (9, 0),
        "inference_launch": inference_launch,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cupy.cuda, "Stream", Stream)
        patch.setattr(cupy.cuda, "get_current_stream", lambda: Stream.null)
        for module in (arena, engine, kernels, network, products, stages):
            for name in replaced.keys() & vars(module).keys():
                patch.setattr(module, name, replaced[name])
        yield


@pytest.mark.parametrize("check", [card.test_one_batch, card.test_twice_the_same_bits], ids=["one-batch", "twice"])
def test_on_the_processor(check: Callable[[Network, ThreadPoolExecutor], None], host: None) -> None:
    with ThreadPoolExecutor(2) as pool:
        check(POOLED, pool)
