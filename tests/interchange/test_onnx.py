"""Test ONNX: exports run in ONNX Runtime and are imported bit for bit; other graphs give one-line errors."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.files.checks import BadValueError
from app.interchange.named_arrays import Description
from app.interchange.onnx_export import onnx_model
from app.interchange.onnx_values import tensor_array
from app.interchange.source import ImportOptions, read_source_file
from app.layers import Resize
from app.network.definitions import LENET5, MINIDNN86
from app.network.foreign import DESCRIPTION
from app.network.graph import Graph, build_graph
from app.network.toml import parse_network
from app.network.weights import Weights
from tests.support import foreign_files
from tests.support.foreign_files import onnx_of_others
from tests.support.networks_for_tests import random_graph
from tests.support.random_networks import random_network
from tests.support.random_networks_checked import graph_of
from tests.support.shell import user_error

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
SEEDS = range(100, 110)  # these random networks do not enlarge images


def import_model(model: Any, folder: Path) -> Graph:
    path = folder / "model.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return foreign_files.imported(path)[1]


def export_graph(graph: Graph) -> Any:
    return onnx_model(Description(graph.network, graph.input_scale, None), graph.parameters)


def check_equal_graphs(graph: Graph, found: Graph) -> None:
    """Check that network, pixel scale and every bit of the arrays are equal."""
    assert found.network == graph.network and found.input_scale == graph.input_scale
    assert found.parameters.keys() == graph.parameters.keys()
    for name, array in graph.parameters.items():
        np.testing.assert_array_equal(found.parameters[name], array, strict=True)


def run_in_onnx_runtime(model: Any, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores and labels that ONNX Runtime computes."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    scores, labels = session.run(["scores", "labels"], {"images": images})
    return scores, labels


@pytest.mark.parametrize("seed", SEEDS)
def test_random_networks_give_their_labels_in_onnx_runtime(seed: int, tmp_path: Path) -> None:
    """Import returns the same network and arrays, also from a graph without this program's description."""
    made = random_network(seed)
    graph = graph_of(made)
    model, images = export_graph(graph), made.images(100)
    scores, labels = run_in_onnx_runtime(model, images)
    expected = graph.reference(images)
    size = np.abs(expected).max()
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5 * size)
    best = np.sort(expected, axis=1)
    ties = best[:, -1] - best[:, -2] < 2e-5 * size  # float32 may give the other label
    assert ((labels == expected.argmax(axis=1)) | ties).all() and ties.mean() < 0.02
    onnx.checker.check_model(model, full_check=True)
    check_equal_graphs(graph, import_model(model, tmp_path))
    found = import_model(onnx_of_others(graph.network, graph.parameters, graph.input_scale), tmp_path)
    np.testing.assert_allclose(found.reference(images), expected, rtol=1e-6, atol=1e-7)
    assert [layer.kind for layer in found.network.layers] == [layer.kind for layer in graph.network.layers]


@pytest.mark.parametrize("rule", ["edge", "course"])
def test_enlarged_images_are_exact(rule: str) -> None:
    """All pixels are equal, also where the mean is a half: an output after the enlargement is compared."""
    resize = Resize("resize", 37, rule)
    text = f'input = [1, 28, 28]\n[[layers]]\ntype = "resize"\nsize = 37\nrule = "{rule}"\n'
    flat = '[[layers]]\ntype = "flatten"\n[[layers]]\ntype = "linear"\noutputs = 2\n'
    network = parse_network(f'name = "enlarged"\npixel_scale = 1\n{text}{flat}', "x")
    graph = build_graph(network, Weights({"fc1": np.ones((37 * 37, 2), np.float32)}, "enlarged", Path("x")))
    model = export_graph(graph)
    at = next(node.input[0] for node in model.graph.node if node.name == "images/floats")
    model.graph.output.append(onnx.helper.make_tensor_value_info(at, onnx.TensorProto.INT32, None))
    images = np.random.default_rng(1).integers(0, 256, (200, 1, 28, 28), np.uint8)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run([at], {"images": images})[0], resize.reference(images, {}))


def test_a_changed_export_is_read_from_its_graph(tmp_path: Path) -> None:
    graph = random_graph(LENET5)
    model = export_graph(graph)
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    relu.op_type = "Tanh"
    assert [layer.kind for layer in import_model(model, tmp_path).network.layers][1] == "tanh"
    enlarging = export_graph(random_graph(MINIDNN86))
    next(node for node in enlarging.graph.node if node.op_type == "Relu").op_type = "Tanh"
    with pytest.raises(UserError, match=r"'resize/int32' .Cast. gives no floats"):
        import_model(enlarging, tmp_path)


def changed_lenet5(change: Callable[[Any], None]) -> Any:
    """Return lenet5's model without this program's description, after ``change`` has changed it."""
    graph = random_graph(LENET5)
    model = onnx_of_others(LENET5, graph.parameters, graph.input_scale)
    change(model)
    return model


def find(model: Any, operator: str) -> Any:
    return next(one for one in model.graph.node if one.op_type == operator)


def remove_attribute_type(operator: str, name: str) -> Callable[[Any], None]:
    """Return a function that removes the type of an attribute, which onnx then reads as None."""

    def change(model: Any) -> None:
        (found,) = (one for one in find(model, operator).attribute if one.name == name)
        found.ClearField("type")

    return change


def set_attributes(operator: str, **values: Any) -> Callable[[Any], None]:
    """Return a function that sets attributes of the first node with this operator."""

    def change(model: Any) -> None:
        found = find(model, operator)
        kept = [one for one in found.attribute if one.name not in values]
        del found.attribute[:]
        found.attribute.extend(kept + [onnx.helper.make_attribute(*value) for value in values.items()])

    return change


def rename_operator(operator: str, to: str, domain: str = "") -> Callable[[Any], None]:
    def change(model: Any) -> None:
        found = find(model, operator)
        found.op_type, found.domain = to, domain

    return change


def change_filters(**fields: Any) -> Callable[[Any], None]:
    """Return a function that changes fields of conv1's filters, a TensorProto."""

    def change(model: Any) -> None:
        found = next(one for one in model.graph.initializer if one.name == "conv1.weight")
        for name, value in fields.items():
            if isinstance(value, list):
                del getattr(found, name)[:]
                getattr(found, name).extend(value)
            else:
                setattr(found, name, value)

    return change


def move_filters(model: Any) -> None:
    change_filters(data_location=1, raw_data=b"")(model)
    found = next(one for one in model.graph.initializer if one.name == "conv1.weight")
    found.external_data.add(key="location", value="/etc/passwd")


def remove_cast(model: Any) -> None:
    rename_operator("Cast", "Identity")(model)
    del find(model, "Identity").attribute[:]


def set_shape(*sizes: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        shape = model.graph.input[0].type.tensor_type.shape
        del shape.dim[:]
        for size in sizes:
            shape.dim.add(dim_value=size)

    return change


BAD: dict[str, tuple[Callable[[Any], None], str]] = {
    "operator": (rename_operator("Relu", "Gelu"), r"node 'relu1' \(Gelu\) has an operator that cannot be imported"),
    "foreign domain": (rename_operator("Relu", "Relu", "com.x"), r"node 'relu1' \(com.x.Relu\) has an operator"),
    "external data": (move_filters, "keeps 'conv1.weight' in '/etc/passwd', which is no file beside it"),
    "group": (set_attributes("Conv", group=2), r"node 'conv1' \(Conv\) has group '2'"),
    "dilations": (set_attributes("Conv", dilations=[2, 2]), "has dilations"),
    "strides": (set_attributes("Conv", strides=[1, 2]), r"has strides \[1, 2\]"),
    "pads": (set_attributes("Conv", pads=[0, 1, 0, 1]), r"has pads \[0, 1, 0, 1\]"),
    "auto_pad": (set_attributes("Conv", auto_pad="SAME"), "has auto_pad"),
    "pool pads": (set_attributes("AveragePool", pads=[1, 0, 1, 1]), r"node 'pool1' \(AveragePool\) has pads"),
    "alpha": (set_attributes("Gemm", alpha=2.0), r"node 'fc1' \(Gemm\) has alpha"),
    "unknown attribute": (set_attributes("Relu", extra=1), "has the attribute 'extra'"),
    "wrong type": (set_attributes("Conv", group="one"), "has a wrong attribute group"),
    "no type": (remove_attribute_type("AveragePool", "strides"), "has a wrong attribute strides"),
    "huge": (change_filters(dims=[10**6, 10**6, 10**6, 10**6]), "declares an impossible shape for 'conv1.weight'"),
    "negative": (change_filters(dims=[-32, 1, 5, -5]), "declares an impossible shape"),
    "too little data": (change_filters(raw_data=b"abcd"), "has damaged data in 'conv1.weight'"),
    "strings": (change_filters(data_type=8), "stores 'conv1.weight' in a type"),
    "rectangular": (change_filters(dims=[32, 5, 5, 1]), "has filters that are not square"),
    "opset": (lambda model: setattr(model.opset_import[0], "version", 12), "has opset 12; export it with one of 13"),
    "unknown batch shape": (set_shape(1, 2, 1, 28, 28), "has the input 'images' .1x2x1x28x28.; export it with float"),
    "another size": (set_shape(1, 1, 36, 36), "has a matrix for 1,024 features"),
    "a window too large": (set_shape(1, 1, 9, 9), "node 'conv2' .Conv. does not fit"),
    "two inputs": (lambda model: model.graph.input.add(name="mask"), "has 2 inputs"),
    "a branch": (lambda model: find(model, "Gemm").input.__setitem__(0, "images"), "does not read the layer before it"),
    "no output": (lambda model: model.graph.output.__delitem__(slice(0, 2)), "does not give out"),
    "bytes": (remove_cast, r"\(Mul\) computes with bytes"),
    "functions": (lambda model: model.functions.add(name="f"), "defines the function 'f'"),
    "sparse": (lambda model: model.graph.sparse_initializer.add(), "stores sparse weights"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_graph_of_other_layers_gives_a_one_line_error(fault: str, tmp_path: Path) -> None:
    change, message = BAD[fault]
    assert re.search(message, user_error(lambda: import_model(changed_lenet5(change), tmp_path)))


def test_a_truncated_model_gives_a_one_line_error(tmp_path: Path) -> None:
    content = changed_lenet5(lambda model: None).SerializeToString()
    for length in (20, 200, len(content) // 2, len(content) - 1):
        with pytest.raises(UserError, match=r"is no ONNX model|has opset none"):
            import_model(content[:length], tmp_path)


def test_options_for_an_onnx_model_are_refused(tmp_path: Path) -> None:
    path, model = tmp_path / "model.onnx", export_graph(random_graph(LENET5))
    assert [one.key for one in model.metadata_props] == [DESCRIPTION]
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match="contains its network; leave --network"):
        read_source_file(path, ImportOptions(LENET5))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), ()])
def test_constants_may_be_empty_or_one_number(shape: tuple[int, ...]) -> None:
    given = np.ones(shape, np.float32)
    tensor = onnx.numpy_helper.from_array(given)
    np.testing.assert_array_equal(tensor_array(tensor, "region"), given, strict=True)
    if shape:
        tensor.dims[0] = -1
        with pytest.raises(BadValueError, match="declares an impossible shape for 'region'"):
            tensor_array(tensor, "region")
