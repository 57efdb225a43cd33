"""Training's products on the card: every element against float64, poisoned memory, the same bits twice."""

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

from app.training.gpu import products
from app.training.gpu.products import ConvSizes
from tests.support.kernel_cases import architecture
from tests.support.product_cases import ConvCase, GemmCase, built, check_conv, check_gemm
from tests.support.training_device import compile_all, poisoned

pytestmark = pytest.mark.gpu
SMALL_CONV = ConvCase(ConvSizes(3, 9, 7, 10, 3, stride=2), (3, 1), "relu", True)
CONVOLUTIONS = [
    SMALL_CONV,
    *(ConvCase(ConvSizes(*sizes), (1,)) for sizes in [(1, 1, 1, 1, 1), (2, 5, 5, 3, 5), (5, 5, 9, 70, 5)]),
    *(
        ConvCase(ConvSizes(channels, 13, 10, maps, (1, 3, 4)[(stride + at) % 3], stride), (2, 1), "tanh", at % 2 == 0)
        for stride in (1, 2, 3)
        for at, (channels, maps) in enumerate([(1, 4), (4, 17), (16, 32), (7, 64), (33, 12)])
    ),
    ConvCase(ConvSizes(1, 28, 28, 32, 5), (256, 13)),
    ConvCase(ConvSizes(32, 12, 12, 64, 5), (256, 13)),
    ConvCase(ConvSizes(1, 70, 70, 12, 5), (5,)),
    ConvCase(ConvSizes(12, 33, 33, 24, 5), (5,), "sigmoid"),
    ConvCase(ConvSizes(1, 72, 72, 12, 7), (5,)),
    ConvCase(ConvSizes(12, 33, 33, 24, 7), (5,)),
    ConvCase(ConvSizes(1, 86, 86, 4, 7), (5,), "relu", True),
    ConvCase(ConvSizes(4, 40, 40, 16, 7), (5,), "relu", True),
]
SMALL_GEMM = GemmCase(33, 10, 300, transpose_a=True, bias=True, activation="relu", alpha=0.5, beta=2.0)
GEMMS = [
    SMALL_GEMM,
    *(
        GemmCase(m, n, k, transpose_a, transpose_b)
        for m, n, k in [(1, 1, 1), (7, 10, 33), (65, 31, 129), (256, 128, 1024), (130, 1000, 17), (4096, 10, 100)]
        for transpose_a in (False, True)
        for transpose_b in (False, True)
    ),
    *(
        GemmCase(67, 13, k, bias=bias, activation=activation, alpha=alpha, beta=beta)
        for k in (5, 513)
        for bias, activation in ((False, ""), (True, "relu"), (True, "tanh"), (False, "sigmoid"))
        for alpha, beta in ((1.0, 0.0), (0.0, 1.0), (-0.5, 0.25))
    ),
    GemmCase(4096, 1000, 784),
    GemmCase(784, 1000, 4096, transpose_a=True),
    GemmCase(1000, 10, 60_000, transpose_a=True),
]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """All kernels, by all processors at once."""
    compile_all([(build, architecture()) for build in built([*GEMMS, *CONVOLUTIONS], architecture())])


@pytest.fixture(autouse=True)
def poisoned_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workspaces begin as NaN, as results do, each in an allocation of its own."""
    monkeypatch.setattr(products, "device_array", poisoned)


@pytest.mark.parametrize("case", GEMMS, ids=str)
def test_gemm(case: GemmCase) -> None:
    check_gemm(case)


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions(case: ConvCase) -> None:
    check_conv(case)


def test_nan_and_infinity_go_where_they_belong() -> None:
    check_gemm(SMALL_GEMM, spoiled=True)
    check_conv(SMALL_CONV, spoiled=True)
