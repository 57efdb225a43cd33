"""Some of the card's tests of training, run by the processor: the kernels' own arithmetic without a card."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

from app.layers import AvgPool, MaxPool, Relu, Sigmoid, Tanh
from app.network.definitions import Network
from app.training.gpu.products import ConvSizes
from app.training.optimisers import AdamW, Sgd
from tests.support.host_kernels import on_the_processor
from tests.support.networks_for_tests import POOLED
from tests.support.product_cases import ConvCase, GemmCase, check_conv, check_gemm
from tests.training import test_gpu_training as whole
from tests.training import test_gpu_training_kernels as card

GEMM = GemmCase(5, 65, 300, transpose_a=True, alpha=0.5, beta=-2.0, bias=True)
CONV = ConvCase(ConvSizes(16, 8, 9, 16, 3, stride=2), (2,), "sigmoid")
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
    (check_gemm, (GemmCase(1, 1, 1),)),
    (check_gemm, (GemmCase(33, 10, 7, transpose_b=True, bias=True, activation="tanh"),)),
    (check_gemm, (GEMM,)),
    (check_gemm, (GEMM, True)),
    (check_gemm, (GemmCase(70, 12, 130, transpose_a=True, transpose_b=True, alpha=-1.5),)),
    (check_conv, (ConvCase(ConvSizes(3, 9, 7, 10, 3), (3, 1), "relu", True),)),
    (check_conv, (CONV,)),
    (check_conv, (CONV, True)),
]


@pytest.fixture(scope="module", autouse=True)
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The processor in the card's place."""
    with on_the_processor(tmp_path_factory.mktemp("host_kernels")):
        yield


@pytest.mark.parametrize(("check", "arguments"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_kernels(check: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    check(*arguments)


@pytest.mark.parametrize("check", [whole.test_one_batch, whole.test_twice_the_same_bits], ids=["one-batch", "twice"])
def test_engine(check: Callable[[Network, ThreadPoolExecutor], None]) -> None:
    with ThreadPoolExecutor(2) as pool:
        check(POOLED, pool)
