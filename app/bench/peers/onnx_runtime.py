"""A network in ONNX Runtime, by its CUDA engine: the exported model, in the precision that is compared."""

import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np

from app.bench.batch import UNWRITTEN, piece_size
from app.bench.peers.rounds import Engine
from app.bench.peers.torch import Setting
from app.errors import UserError
from app.interchange.named_arrays import Description
from app.interchange.onnx_export import IMAGES, LABELS, onnx_model
from app.layers import Resize
from app.network.graph import Graph, Step

CUDA = "CUDAExecutionProvider"
ENLARGED, BYTES = "enlarged", "label_bytes"
SETTINGS = [Setting(layout, *way) for way in ((False, True), (False, False), (True, False)) for layout in (False, True)]


class OnnxEngine(Engine):
    """Classifies one batch with ONNX Runtime. provider: ``CPUExecutionProvider`` for tests.

    Images and labels stay at the same places on the card, where every pass reads and writes them.
    """

    def __init__(
        self,
        graph: Graph,
        images: np.ndarray,
        labels: np.ndarray,
        precision: str,
        setting: Setting,
        provider: str = CUDA,
    ) -> None:
        for package in ("onnxruntime", "onnx"):
            if importlib.util.find_spec(package) is None:
                raise UserError(f"{package} is not installed")
        import onnxruntime

        if provider not in onnxruntime.get_available_providers():
            raise UserError("ONNX Runtime has no CUDA engine here: pip install onnxruntime-gpu")
        half, count = precision == "fp16", len(images)
        piece = piece_size(graph, count, 2 if half else 4) if setting.pieces else count
        if setting.pieces and piece == count:
            raise UserError("the batch is one piece")
        self.note = f"pieces of {piece:,}" if setting.pieces else ""
        switches = {"use_tf32": precision == "tf32", "prefer_nhwc": setting.channels_last}
        switches |= {"enable_cuda_graph": setting.graph}
        given = {name: str(int(value)) for name, value in switches.items()} | {"cudnn_conv_algo_search": "EXHAUSTIVE"}
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        model = model_of(graph, half).SerializeToString()
        self._session = onnxruntime.InferenceSession(
            model, options, providers=[(provider, given if provider == CUDA else {})]
        )
        if provider not in self._session.get_providers():
            raise UserError("ONNX Runtime's CUDA engine does not load: its CUDA libraries are missing")
        self._later = onnxruntime.RunOptions()
        self._later.add_run_config_entry("disable_synchronize_execution_providers", "1")
        device = "cuda" if provider == CUDA else "cpu"
        self._host, self._host_labels = images, labels
        self._unwritten = np.full_like(labels, UNWRITTEN)
        made = onnxruntime.OrtValue.ortvalue_from_shape_and_type
        self._images, self._labels = (made(array.shape, np.uint8, device, 0) for array in (images, labels))
        self._bindings = []
        for first in range(0, count, piece):
            binding = self._session.io_binding()
            at = self._images.data_ptr() + first * images[0].nbytes
            binding.bind_input(IMAGES, device, 0, np.uint8, (piece, *images.shape[1:]), at)
            binding.bind_output(BYTES, device, 0, np.uint8, (piece,), self._labels.data_ptr() + first)
            self._bindings.append(binding)

    def load(self) -> None:
        self._images.update_inplace(self._host)
        self._labels.update_inplace(self._unwritten)

    def enqueue(self) -> None:
        for binding in self._bindings:
            self._session.run_with_iobinding(binding, self._later)

    def synchronize(self) -> None:
        self._bindings[-1].synchronize_outputs()

    def card_labels(self) -> np.ndarray:
        copy: np.ndarray = self._labels.numpy().copy()
        return copy

    def wipe(self) -> None:
        self._images.update_inplace(np.zeros_like(self._host))
        self._labels.update_inplace(self._unwritten)

    def run(self) -> None:
        self._images.update_inplace(self._host)
        self.enqueue()
        self.synchronize()
        self._host_labels[:] = self._labels.numpy()

    def close(self) -> None:
        self._bindings = []
        self._session = self._images = self._labels = None


def model_of(graph: Graph, half: bool) -> Any:
    """Return the exported model with labels (N,) uint8 as its only output; half: in float16.

    ONNX Runtime has no CUDA kernel for the exported model's enlarging, a product of whole numbers. Here it is a sum of
    two gathered neighbours along each axis, to the same bits.
    """
    from onnx import AttributeProto, TensorProto, helper, numpy_helper

    steps = graph.steps[: graph.scaled_at]
    shape, layers = graph.steps[graph.scaled_at].in_shape, graph.network.layers[graph.scaled_at :]
    network = replace(graph.network, input_shape=shape, layers=layers)
    model = onnx_model(Description(network, graph.input_scale, None), graph.parameters)
    found = model.graph
    if half:
        for array in found.initializer:
            if array.data_type == TensorProto.FLOAT:
                array.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(array).astype(np.float16), array.name))
        for attribute in (attribute for node in found.node for attribute in node.attribute):
            if attribute.name == "to" and attribute.type == AttributeProto.INT and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    found.node.append(helper.make_node("Cast", [LABELS], [BYTES], to=TensorProto.UINT8))
    del found.output[:]
    found.output.append(helper.make_tensor_value_info(BYTES, TensorProto.UINT8, ["N"]))
    if steps:
        found.node[0].input[0] = ENLARGED
        others = [*found.node]
        del found.node[:]
        _enlarge(found, steps, helper, numpy_helper)
        found.node.extend(others)
        sizes = ["N", *graph.network.input_shape]
        found.input[0].CopyFrom(helper.make_tensor_value_info(IMAGES, TensorProto.UINT8, sizes))
    return model


def _enlarge(found: Any, steps: tuple[Step, ...], helper: Any, numpy_helper: Any) -> None:
    """Add the nodes that enlarge the images, and their constants."""

    def node(operator: str, inputs: list[str], constant: np.ndarray | None = None, **attributes: Any) -> str:
        name = f"enlarging{len(found.node)}"
        if constant is not None:
            found.initializer.append(numpy_helper.from_array(constant, f"{name}/constant"))
            inputs = [*inputs, f"{name}/constant"]
        found.node.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    at = node("Cast", [IMAGES], to=helper.np_dtype_to_tensor_dtype(np.dtype(np.int32)))
    for step in steps:
        layer = step.layer
        if not isinstance(layer, Resize):
            raise UserError(f"layer {layer.name} ({layer.kind}) cannot be built in ONNX Runtime here")
        for axis in (3, 2):
            low, high, near, far = layer.neighbours(step.in_shape[axis - 1])
            columns = (-1,) if axis == 3 else (-1, 1)
            parts = [
                node("Mul", [node("Gather", [at], places, axis=axis)], weights.reshape(columns))
                for places, weights in ((low, near), (high, far))
            ]
            at = node("Add", parts)
        if layer.rounding:
            at = node("Add", [at], np.array(layer.rounding, np.int32))
        at = node("Div", [at], np.array(layer.divisor, np.int32))
    found.node[-1].output[0] = ENLARGED
