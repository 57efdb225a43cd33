"""Some of the card's tests of training's kernels, run by the processor: the kernels' own arithmetic without a card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
from app.layers import AvgPool, MaxPool, Relu, Sigmoid, Tanh
from app.training.gpu import kernels
from app.training.optimisers import AdamW, Sgd
from tests.support.host_kernels import COMPILER, HostArray, HostFunction, uploaded
from tests.support.training_device import GUARD
from tests.training import test_gpu_training_kernels as card

CASES: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
    (card.test_gather, ((3, 7, 9), 2, True, "float32")),
    (card.test_gather, ((2, 5, 3), 0, False, "uint8")),
    (card.test_scale, ()),
    (card.test_dropout, (1, 0.5, False)),
    (card.test_activation_gradient, (Sigmoid("f"),)),
    (card.test_pool_gradient, (MaxPool("p", window=3, stride=1), (4, 7, 6), Tanh("f"))),
    (card.test_pool_gradient, (AvgPool("p", window=2, stride=3), (3, 12, 10), Relu("f"))),
    (card.test_transpose, (33, 65)),
    (card.test_column_sums, (1500, 33, 1)),
    (card.test_column_sums, (13, 4, 1000)),
    (card.test_cross_entropy, (77, 3, 0.05)),
    (card.test_update, (Sgd(0.1), 0.02)),
    (card.test_update, (AdamW(0.1), 0.0)),
]


def poisoned(elements: int, dtype: str = "float32") -> HostArray:
    return uploaded(np.full((elements + GUARD) * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The processor in the card's place; an access beyond an input's end is a crash."""
    if COMPILER is None:
        pytest.skip("g++ is not installed")
    HostFunction.folder = tmp_path_factory.mktemp("host_kernels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "training_kernel", HostFunction)
        patch.setattr(kernels, "device_array", poisoned)
        for name, replaced in {"uploaded": uploaded, "poisoned": poisoned, "null": lambda: None}.items():
            patch.setattr(card, name, replaced)
        yield


@pytest.mark.parametrize(("check", "arguments"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_on_the_processor(check: Callable[..., None], arguments: tuple[Any, ...], host: None) -> None:
    check(*arguments)
