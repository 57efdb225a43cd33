"""Test safetensors, NPZ and PyTorch's state dicts: their arrays match a network, or give a one-line error."""

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from app.base.errors import UserError
from app.interchange.named_arrays import NamedArrays
from app.interchange.npz import build_npz_bytes
from app.interchange.source import ImportOptions, Source
from app.network.definitions import LENET5, MLP
from app.network.graph import Graph
from app.network.network import Network
from app.network.toml import parse_network
from app.tools.import_ import largest_difference
from tests.support import foreign_files
from tests.support.foreign_files import npz_file, safetensors_file, state_dict_file
from tests.support.networks_for_tests import layers_toml, random_graph
from tests.support.shell import user_error

LENET = parse_network(
    'name = "lenet_of_pytorch"\ninput = [1, 28, 28]\n'
    + layers_toml(
        *("conv2d maps=6 kernel=5 padding=2", "relu", "maxpool window=2"),
        *("conv2d maps=16 kernel=5", "relu", "maxpool window=2", "flatten"),
        *("linear outputs=120", "relu", "linear outputs=84", "relu", "linear outputs=10"),
    ),
    "lenet_of_pytorch.toml",
)
SHAPES = {"conv1": (6, 1, 5, 5), "conv2": (16, 6, 5, 5), "fc1": (120, 400), "fc2": (84, 120), "fc3": (10, 84)}
# Names in a model of two torch.nn.Sequential.
PREFIXES = {"conv1": "features.0", "conv2": "features.3", "fc1": "classifier.1", "fc2": "classifier.3"}
PREFIXES["fc3"] = "classifier.5"


def random_arrays(seed: int, prefixes: dict[str, str]) -> dict[str, np.ndarray]:
    """Return random weights and biases under these prefixes, scaled so that all classes occur."""
    rng = np.random.default_rng(seed)
    found = {}
    for layer, shape in SHAPES.items():
        deviation = 2 / np.sqrt(np.prod(shape[1:]))
        found[f"{prefixes[layer]}.weight"] = (rng.standard_normal(shape) * deviation).astype(np.float32)
        found[f"{prefixes[layer]}.bias"] = (rng.standard_normal(shape[0]) * 0.1).astype(np.float32)
    return found


def onnx_runtime_scores(arrays: dict[str, np.ndarray], prefixes: dict[str, str], images: np.ndarray) -> np.ndarray:
    """Return ONNX Runtime's scores (N, 10) of images (N, 1, 28, 28) uint8 for arrays in PyTorch's layout."""
    runtime = pytest.importorskip("onnxruntime")
    from tests.support.onnx_steps import FLAT, POOL, RELU, model_of

    own = {layer: [arrays[f"{prefixes[layer]}.{kind}"] for kind in ("weight", "bias")] for layer in SHAPES}
    products = [("Gemm", own[layer], {"transB": 1}) for layer in ("fc1", "fc2", "fc3")]
    convolutions = [("Conv", own["conv1"], {"pads": [2] * 4}), RELU, POOL, ("Conv", own["conv2"], {}), RELU, POOL]
    steps = [*convolutions, FLAT, products[0], RELU, products[1], RELU, products[2]]
    session = runtime.InferenceSession(model_of(steps, shape=(1, 28, 28)).SerializeToString())
    return session.run(None, {"images": (images / np.float32(255)).astype(np.float32)})[0]


OWN = {layer: layer for layer in SHAPES}
DEEPER = {"conv1": "body.conv", "conv2": "b", "fc1": "x.y.z", "fc2": "linear_2", "fc3": "head"}
COARSE = np.random.default_rng(5).integers(0, 256, (64, 1, 4, 4), np.uint8)
IMAGES = np.kron(COARSE, np.ones((7, 7), np.uint8))  # with independent pixels, all labels would be equal


Write = Callable[[dict[str, np.ndarray]], bytes]
WRITERS: dict[str, Write] = {"safetensors": safetensors_file, "npz": npz_file, "state dict": state_dict_file}


def import_bytes(folder: Path, content: bytes, network: Network | None = LENET) -> Graph:
    """Import a file with this content; return its graph."""
    (folder / "file").write_bytes(content)
    return foreign_files.imported(folder / "file", ImportOptions(network))[1]


@pytest.mark.parametrize("prefixes", [OWN, PREFIXES, DEEPER], ids=["our names", "two Sequentials", "any names"])
@pytest.mark.parametrize("kind", WRITERS)
def test_arrays_named_as_in_pytorch_give_the_same_scores(kind: str, prefixes: dict[str, str], tmp_path: Path) -> None:
    arrays = random_arrays(3, prefixes)
    graph = import_bytes(tmp_path, WRITERS[kind](arrays))
    expected = onnx_runtime_scores(arrays, prefixes, IMAGES)
    np.testing.assert_allclose(graph.reference(IMAGES), expected, rtol=0, atol=1e-5)
    labels = graph.reference(IMAGES).argmax(axis=1)
    np.testing.assert_array_equal(labels, expected.argmax(axis=1))
    assert len(np.unique(labels)) > 2


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("network", [LENET5, MLP], ids=lambda network: network.name)
def test_names_of_weights_files_imply_their_layout(kind: str, network: Network, tmp_path: Path) -> None:
    arrays = dict(random_graph(network).parameters)
    found = import_bytes(tmp_path, WRITERS[kind](arrays), network)
    assert found.parameters.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.parameters[name], array, strict=True)


def test_types_are_converted_or_refused(tmp_path: Path) -> None:
    single = random_arrays(1, OWN)
    for dtype in (np.float16, np.float64, ">f4"):
        graph = import_bytes(tmp_path, npz_file({name: array.astype(dtype) for name, array in single.items()}))
        expected = single["fc2.weight"].astype(dtype).astype(np.float32).T
        np.testing.assert_array_equal(graph.parameters["fc2"], expected, strict=True)
    with pytest.raises(UserError, match=r"'conv1.weight' is stored as int32; store it as float32"):
        import_bytes(tmp_path, npz_file(single | {"conv1.weight": np.ones(SHAPES["conv1"], np.int32)}))


WRONG: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "a name too many": (random_arrays(1, OWN) | {"norm.scale": np.ones(3, np.float32)}, "'norm.scale' is named"),
    "a further layer": (
        random_arrays(1, OWN) | {"fc4.weight": np.ones((2, 3), "f4")},
        "network lenet_of_pytorch needs",
    ),
    "a bias alone": (random_arrays(1, OWN) | {"fc4.bias": np.ones(3, "f4")}, "'fc4.bias' has no weight beside it"),
    "another shape": (random_arrays(1, OWN) | {"fc3.weight": np.ones((11, 84), np.float32)}, r"fc3 is \(11, 84\)"),
    "another bias": (random_arrays(1, OWN) | {"fc3.bias": np.ones(11, np.float32)}, r"fc3_bias is \(11\)"),
    "none of them": ({"x": np.ones(3, np.float32)}, "has no conv1"),
    "nan": (random_arrays(1, OWN) | {"fc3.bias": np.full(10, np.nan, np.float32)}, "10 NaN"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_arrays_of_other_networks_are_refused(fault: str, tmp_path: Path) -> None:
    arrays, message = WRONG[fault]
    with pytest.raises(UserError, match=message):
        import_bytes(tmp_path, build_npz_bytes(NamedArrays(arrays)))


def test_layers_of_one_shape_need_their_names(tmp_path: Path) -> None:
    linear = '[[layers]]\ntype = "linear"\noutputs = 9\n'
    network = parse_network(f'name = "a"\ninput = [1, 3, 3]\n[[layers]]\ntype = "flatten"\n{linear * 2}', "a")
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((9, 9)).astype(np.float32) for name in ("fc1", "fc2")}
    graph = import_bytes(tmp_path, npz_file({f"{name}.weight": array for name, array in arrays.items()}), network)
    assert all(np.array_equal(graph.parameters[name], array.T) for name, array in arrays.items())
    with pytest.raises(UserError, match="has '0' and '2' of one shape: rename them as the layers are: fc1, fc2"):
        import_bytes(tmp_path, npz_file({"0.weight": arrays["fc1"], "2.weight": arrays["fc2"]}), network)


def test_a_network_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no network in it; the printed one alone fits"):
        import_bytes(tmp_path, npz_file(random_arrays(1, OWN)), None)


class Planted:
    """An object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickled_code_never_runs(tmp_path: Path) -> None:
    path = tmp_path / "it ran"
    planted = np.array([Planted(path)], dtype=object)
    with pytest.raises(UserError, match=r"'conv1\.weight' contains pickled objects, which may run code"):
        import_bytes(tmp_path, npz_file(random_arrays(1, OWN) | {"conv1.weight": planted}))
    assert not path.exists()
    assert pickle.loads(pickle.dumps(planted)) is not None and path.exists(), "the planted code does something"


def test_pytorch_runs_no_code_of_a_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "it ran"
    stream = io.BytesIO()
    torch.save({"conv1.weight": Planted(path)}, stream)
    for content in (stream.getvalue(), pickle.dumps(Planted(path))):
        with pytest.raises(UserError, match=r"nothing in it was run|is a Python pickle"):
            import_bytes(tmp_path, content)
    assert not path.exists()


def test_errors_name_unsupported_types_of_pytorch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    whole = torch.ones(SHAPES["fc3"])
    kinds = {
        "stored as bfloat16": whole.to(torch.bfloat16),
        "stored as int64": whole.to(torch.int64),
        "stored sparse": whole.to_sparse(),
        "stored without its numbers": whole.to("meta"),
        "no tensor but 'list'": whole.tolist(),
    }
    for message, value in kinds.items():
        stream = io.BytesIO()
        torch.save({"fc3.weight": value}, stream)
        with pytest.raises(UserError, match=f"'fc3.weight' is {message}"):
            import_bytes(tmp_path, stream.getvalue())


def safetensors_bytes(header: dict[str, Any], data: bytes = bytes(24)) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor_header(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


BAD_SAFETENSORS = {
    "overlapping": safetensors_bytes({"a.weight": tensor_header(0, 16, [4]), "b.weight": tensor_header(8, 24, [4])}),
    "huge": safetensors_bytes({"a.weight": tensor_header(0, 24, [2**62, 2**62])}),
    "a long header": (1 << 62).to_bytes(8, "little")[:4] + bytes(4) + b'{"a',
    "no header": (4).to_bytes(8, "little") + b'{"a"',
    "truncated": safetensors_bytes({"a.weight": tensor_header(0, 24, [6])})[:-1],
}


@pytest.mark.parametrize("fault", BAD_SAFETENSORS)
def test_a_bad_safetensors_file_gives_a_one_line_error(fault: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    assert "is no valid safetensors file" in user_error(lambda: import_bytes(tmp_path, BAD_SAFETENSORS[fault]))


def test_errors_name_unsupported_types_of_safetensors(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    with pytest.raises(UserError, match=r"'a\.weight' has type BF16; store it as one of F16, F32, F64"):
        import_bytes(tmp_path, safetensors_bytes({"a.weight": tensor_header(0, 24, [12], "BF16")}))


@pytest.mark.parametrize("score", [1e6, np.nan])
def test_an_import_that_changes_scores_is_refused(score: float) -> None:
    graph = random_graph(LENET5)
    engine = Mock(logits=lambda images: np.full((len(images), 10), score))
    with pytest.raises(UserError, match="the converted network gives other scores"):
        largest_difference(Source(LENET5, graph.parameters, {}, engine=engine), graph)
