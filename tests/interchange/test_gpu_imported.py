"""Imported networks of every kind: the CPU, every plan and the card compute what their text says, in each precision.

The text and the arrays come from the import; the oracle reads that text and shares no code with layers and kernels.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.interchange.source import ImportOptions
from app.network.network import Network
from app.network.toml import network_toml, parse_network
from app.tools.import_ import read_foreign_file
from tests.interchange.test_export import ARCHIVE, EXPECTED
from tests.interchange.test_keras import MODELS
from tests.interchange.test_onnx_folding import FOLDED
from tests.interchange.test_torch_arrays import NETWORK, arrays_of, sequential
from tests.support.foreign_files import npz_file
from tests.support.keras_files import Model, configuration, keras_hdf5, keras_zip
from tests.support.network_oracle import described
from tests.support.networks_for_tests import layers_toml
from tests.support.onnx_steps import model_of
from tests.support.random_networks import RandomNetwork
from tests.support.random_networks_checked import check_on_card, check_on_cpu, check_plans

LAYERS = ("conv2d maps=6 kernel=5 stride=2", "tanh", "flatten", "linear outputs=10")
STRIDED = parse_network('name = "m"\ninput = [1, 28, 28]\n' + layers_toml(*LAYERS), "m.toml")
ONNX = (
    *("twice", "normalised", "no shift", "before padding", "padded more at the start", "relu6", "leaky relu"),
    *("before a mean of zeros", "before a mean of pixels", "same pooling", "global average"),
)
KERAS = ("convolutions", "scaled channels", "slopes", "normalised behind", "zeros around", "padded poolings")
Maker = Callable[[Path], ImportOptions]


def onnx_maker(case: str) -> Maker:
    def make(path: Path) -> ImportOptions:
        path.write_bytes(model_of(FOLDED[case][0]).SerializeToString())
        return ImportOptions(name="onnx")

    return make


def keras_maker(case: str, write: Callable[[Model, object], bytes]) -> Maker:
    shape, model = MODELS[case]

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


KINDS: dict[str, Maker] = {
    **{f"ONNX, {case}": onnx_maker(case) for case in ONNX},
    **{f"Keras, {case}": keras_maker(case, keras_zip) for case in KERAS},
    "Keras HDF5, slopes": keras_maker("slopes", keras_hdf5),
    **{name: exported_maker(name) for name in EXPECTED},
    "state dict, batch norm": state_dict_maker(sequential(), NETWORK),
    "state dict, strides": state_dict_maker(arrays_of({"conv1": (6, 1, 5, 5), "fc1": (10, 864)}), STRIDED),
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
