"""Compare imported networks of every kind with an oracle: on the CPU, by every plan and on the GPU, in each precision.

The TOML text and the arrays come from the import; the oracle reads that text and shares no code with layers and
kernels.
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
from tests.interchange.test_torch_arrays import NETWORK, arrays_of_sequential, layers_of
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


def onnx_writer(case: str) -> Maker:
    def write_file(path: Path) -> ImportOptions:
        path.write_bytes(model_of(FOLDED[case][0]).SerializeToString())
        return ImportOptions(name="onnx")

    return write_file


def keras_writer(case: str, write: Callable[[Model, object], bytes]) -> Maker:
    shape, model = MODELS[case]

    def write_file(path: Path) -> ImportOptions:
        path.write_bytes(write(model, configuration(model, shape)))
        return ImportOptions(name="keras")

    return write_file


def exported_writer(name: str) -> Maker:
    def write_file(path: Path) -> ImportOptions:
        ARCHIVE.extractall(path.parent)
        (path.parent / name).rename(path)
        return ImportOptions(name="exported")

    return write_file


def state_dict_writer(arrays: dict[str, np.ndarray], network: Network) -> Maker:
    def write_file(path: Path) -> ImportOptions:
        path.write_bytes(npz_file(arrays))
        return ImportOptions(network, name="state_dict")

    return write_file


KINDS: dict[str, Maker] = {
    **{f"ONNX, {case}": onnx_writer(case) for case in ONNX},
    **{f"Keras, {case}": keras_writer(case, keras_zip) for case in KERAS},
    "Keras HDF5, slopes": keras_writer("slopes", keras_hdf5),
    **{name: exported_writer(name) for name in EXPECTED},
    "state dict, batch norm": state_dict_writer(arrays_of_sequential(), NETWORK),
    "state dict, strides": state_dict_writer(layers_of({"conv1": (6, 1, 5, 5), "fc1": (10, 864)}), STRIDED),
}


def import_network(kind: str, seed: int) -> RandomNetwork:
    """Import the file of a kind; return its network as a TOML text with arrays. seed: for the images."""
    path = Path("model")
    asked = KINDS[kind](path)
    _, source, found = read_foreign_file(path, asked)
    text = network_toml(source.network)
    arrays = {one.name: one.array for one in found}
    return RandomNetwork(seed, text, described(text), arrays)


@pytest.fixture
def network(request: pytest.FixtureRequest) -> RandomNetwork:
    return import_network(request.param, [*KINDS].index(request.param))


every_kind = pytest.mark.parametrize("network", KINDS, indirect=True)


@every_kind
def test_cpu_and_every_plan_match_the_oracle(network: RandomNetwork) -> None:
    check_on_cpu(network)
    check_plans(network)


@pytest.mark.gpu
@every_kind
def test_gpu_matches_the_oracle(network: RandomNetwork) -> None:
    """Every launch of every plan equals the oracle, and engines give the same bits, in fp32, fp32x, fp16 and tf32."""
    check_on_card(network)
