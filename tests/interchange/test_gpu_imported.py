"""Imported networks of every kind: the CPU, every plan and the card compute what their text says, in each precision.

The text and the arrays come from the import; the oracle reads that text and shares no code with layers and kernels.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.interchange.source import ImportOptions
from app.network.network import Network
from app.network.toml import network_toml, parse_network
from app.tools.import_ import read_foreign_file
from tests.interchange.test_export import ARCHIVE, EXPECTED
from tests.interchange.test_keras import FLATTEN, conv, dense, norm, plain
from tests.interchange.test_torch_arrays import NETWORK, arrays_of, sequential
from tests.support import onnx_steps
from tests.support.foreign_files import npz_file
from tests.support.keras_files import Model, configuration, keras_hdf5, keras_zip
from tests.support.network_oracle import described
from tests.support.networks_for_tests import layers_toml
from tests.support.onnx_steps import DIV, FLAT, MEAN, POOL, RELU, SUB, Step, floats, gemm, model_of
from tests.support.random_networks import RandomNetwork
from tests.support.random_networks_checked import check_on_card, check_on_cpu, check_plans

PADDED: dict[str, Any] = {"pads": [1] * 4}


def pooling(operator: str, window: int, stride: int, pad: int, **more: int) -> Step:
    return operator, [], {"kernel_shape": [window] * 2, "strides": [stride] * 2, "pads": [pad] * 4, **more}


STRIDED = ("conv2d maps=6 kernel=5 stride=2", "tanh", "flatten", "linear outputs=10")
STEPS: dict[str, tuple[tuple[int, int, int], list[Step]]] = {  # of ONNX models
    "batch norm": (
        (1, 12, 12),
        [
            *(onnx_steps.conv(1, 8), onnx_steps.norm(8), RELU, POOL, onnx_steps.conv(8, 12), RELU),
            *(onnx_steps.norm(12), FLAT, gemm(108, 20), onnx_steps.norm(20), RELU, gemm(20, 10)),
        ],
    ),
    "normalisation": ((1, 14, 14), [SUB, DIV, onnx_steps.conv(1, 6), RELU, POOL, FLAT, gemm(216, 10)]),
    "normalisation, padding": (
        (3, 8, 8),
        [("Sub", [floats(1, 3, 1, 1)], {}), DIV, onnx_steps.conv(**PADDED), RELU, POOL, FLAT, gemm(64, 10)],
    ),
    "padding, tanh": (
        (1, 16, 16),
        [
            *(onnx_steps.conv(1, 6, 5, pads=[2] * 4), ("Tanh",), MEAN, onnx_steps.conv(6, 16, 5), ("Tanh",), MEAN),
            *(FLAT, gemm(64, 20), ("Tanh",), gemm(20, 10)),
        ],
    ),
    "strides, three channels": (
        (3, 17, 17),
        [onnx_steps.conv(3, 16, 5, strides=[2, 2]), RELU, onnx_steps.conv(16, 8, strides=[2, 2]), FLAT, gemm(72, 10)],
    ),
    "three convolutions": (
        (1, 16, 16),
        [
            *(onnx_steps.conv(1, 8, **PADDED), RELU, POOL, onnx_steps.conv(8, 12, **PADDED), RELU, POOL),
            *(onnx_steps.conv(12, 16), RELU, FLAT, gemm(64, 10), ("Softmax", [], {"axis": 1})),
        ],
    ),
    "relu6": (
        (1, 12, 12),
        [onnx_steps.conv(1, 6), ("Clip", [np.float32(0), np.float32(6)], {}), POOL, FLAT, gemm(150, 10)],
    ),
    "leaky relu": (
        (1, 13, 13),
        [
            *(onnx_steps.conv(1, 6), ("LeakyRelu", [], {"alpha": 0.3}), POOL, onnx_steps.conv(6, 8), ("LeakyRelu",)),
            *(FLAT, gemm(72, 16), ("PRelu", [np.full(1, 0.25, np.float32)], {}), gemm(16, 10)),
        ],
    ),
    "padded poolings": (
        (1, 13, 13),
        [
            *(onnx_steps.conv(1, 6), RELU, pooling("MaxPool", 3, 2, 1), onnx_steps.conv(6, 8), ("Tanh",)),
            *(
                pooling("AveragePool", 3, 1, 1, count_include_pad=1),
                pooling("AveragePool", 3, 2, 1),
                FLAT,
                gemm(32, 10),
            ),
        ],
    ),
    "global average": (
        (1, 10, 10),
        [onnx_steps.conv(1, 8), RELU, onnx_steps.conv(8, 10), RELU, ("GlobalAveragePool",), FLAT, gemm(10, 10)],
    ),
}
LAYERS: dict[str, tuple[tuple[int, int, int], Model]] = {  # of Keras models
    "rescaled": (
        (13, 13, 1),
        [
            *(plain("Rescaling", scale=1 / 255), conv(3, 1, 8, activation="relu"), norm(8), plain("MaxPooling2D")),
            *(conv(3, 8, 6, padding="same"), plain("ReLU"), FLATTEN, dense(150, 10)),
        ],
    ),
    "shifted, padded": (
        (11, 11, 3),
        [
            *(plain("Rescaling", scale=1 / 127.5, offset=-1), conv(3, 3, 8, padding="same"), norm(8)),
            *(plain("ReLU", max_value=6), plain("AveragePooling2D"), conv(3, 8, 12), plain("GlobalAveragePooling2D")),
            dense(12, 10),
        ],
    ),
}
LAYERS["padded poolings"] = (
    (12, 12, 1),
    [
        *(conv(3, 1, 6, activation="leaky_relu"), plain("MaxPooling2D", pool_size=3, strides=1, padding="same")),
        *(plain("AveragePooling2D", pool_size=2, strides=1, padding="same"), conv(3, 6, 8), plain("ReLU")),
        *(plain("MaxPooling2D", pool_size=3, strides=2, padding="same"), FLATTEN, dense(128, 10)),
    ],
)
Maker = Callable[[Path], ImportOptions]


def onnx_maker(case: str) -> Maker:
    shape, steps = STEPS[case]

    def make(path: Path) -> ImportOptions:
        path.write_bytes(model_of(steps, shape=shape).SerializeToString())
        return ImportOptions(name="onnx")

    return make


def keras_maker(case: str, write: Callable[[Model, object], bytes]) -> Maker:
    shape, model = LAYERS[case]

    def make(path: Path) -> ImportOptions:
        path.write_bytes(write(model, configuration(model, shape)))
        return ImportOptions(name="keras")

    return make


def exported_maker(name: str) -> Maker:
    def make(path: Path) -> ImportOptions:
        ARCHIVE.extractall(path.parent)
        (path.parent / name).rename(path)
        return ImportOptions(name="exported")

    return make


def state_dict_maker(arrays: dict[str, np.ndarray], network: Network) -> Maker:
    def make(path: Path) -> ImportOptions:
        path.write_bytes(npz_file(arrays))
        return ImportOptions(network, name="state_dict")

    return make


def network_from_chain(*layers: str) -> Network:
    return parse_network('name = "m"\ninput = [1, 28, 28]\n' + layers_toml(*layers), "m.toml")


KINDS: dict[str, Maker] = {
    **{f"ONNX, {case}": onnx_maker(case) for case in STEPS},
    **{f"Keras, {case}": keras_maker(case, keras_zip) for case in LAYERS},
    "Keras HDF5, rescaled": keras_maker("rescaled", keras_hdf5),
    **{name: exported_maker(name) for name in EXPECTED},
    "state dict, batch norm": state_dict_maker(sequential(), NETWORK),
    "state dict, strides and tanh": state_dict_maker(
        arrays_of({"conv1": (6, 1, 5, 5), "fc1": (10, 864)}), network_from_chain(*STRIDED)
    ),
}


def imported(kind: str, seed: int) -> RandomNetwork:
    """What the import makes of the file, as a text with its arrays. seed: of the images."""
    path = Path("model")
    asked = KINDS[kind](path)
    _, source, found = read_foreign_file(path, asked)
    text = network_toml(source.network)
    arrays = {one.name: one.array for one in found}
    return RandomNetwork(seed, text, described(text), arrays)


@pytest.fixture
def network(request: pytest.FixtureRequest) -> RandomNetwork:
    return imported(request.param, [*KINDS].index(request.param))


every_kind = pytest.mark.parametrize("network", KINDS, indirect=True)


@every_kind
def test_the_cpu_and_every_plan(network: RandomNetwork) -> None:
    check_on_cpu(network)
    check_plans(network)


@pytest.mark.gpu
@every_kind
def test_the_card(network: RandomNetwork) -> None:
    """Every launch of every plan (fp32, fp32x, fp16, tf32), element by element; engines give the same bits."""
    check_on_card(network)
