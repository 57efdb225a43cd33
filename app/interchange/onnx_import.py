"""Import an ONNX model whose layers form a chain. The import executes no code in the model."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.files.checks import BadValueError, format_for_error
from app.interchange.chain import assemble_network
from app.interchange.engines import onnx_engine
from app.interchange.layer_stack import BRIGHT
from app.interchange.layout import convert_arrays, source_array_shapes
from app.interchange.named_arrays import parse_class_names, parse_description, torch_key
from app.interchange.onnx_chain import OnnxGraph
from app.interchange.onnx_export import SCORES, onnx_model, require_onnx
from app.interchange.onnx_values import load_external_data, tensor_array
from app.interchange.source import ImportOptions, Source, as_float32
from app.layers import Softmax
from app.network.foreign import DESCRIPTION
from app.network.network import PIXEL_SCALE

OLDEST_OPSET = 13


def read_source(content: bytes, options: ImportOptions) -> Source:
    """Return the network and arrays of an ONNX file, given its content. Raises BadValueError if that is impossible."""
    if options != ImportOptions():
        raise BadValueError("is an ONNX model, which contains its network; leave --network, --size and --symbol out")
    model = _parse_model(content)
    del content  # free the memory: the parsed model needs as much
    opset = _check_model_features(model)
    load_external_data(model, options.path)
    exported = _source_of_own_export(model)
    if exported is not None:
        ends_in_softmax = isinstance(exported.network.layers[-2], Softmax)
        logits = model.graph.node[-2].input[0] if ends_in_softmax else SCORES
        return replace(exported, engine=onnx_engine(model, logits, lambda images: images))
    chain = OnnxGraph(model.graph, opset)
    source = _build_source(chain, options.name, {one.key: one.value for one in model.metadata_props})

    def convert_images(images: np.ndarray) -> np.ndarray:
        """Return images in the model's dtype and range: uint8, or float32 from 0 to 255 or from 0 to 1."""
        images = chain.to_model_shape(images)
        return images if chain.reads_bytes else (images * _byte_scale(chain)).astype(np.float32)

    engine = onnx_engine(model, chain.logits, convert_images, chain.batch)
    chain.drop_arrays()
    return replace(source, engine=engine)


def _parse_model(content: bytes) -> Any:
    model = require_onnx().ModelProto()
    from google.protobuf.message import DecodeError

    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise BadValueError(f"is no ONNX model: {format_for_error(str(error))}; get a fresh copy") from None
    for name in _names_in_model(model):
        if not isinstance(name, str) or not name.isprintable():  # protobuf gives a name that is not UTF-8 as bytes
            raise BadValueError(f"contains the name {format_for_error(name)}; get a fresh copy")
    return model


def _names_in_model(model: Any) -> Iterator[Any]:
    """Yield every name in the model that this program reads."""
    graph = model.graph
    yield graph.name
    for one in (*graph.initializer, *graph.input, *graph.output):
        yield one.name
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (one.name for one in node.attribute)


def _check_model_features(model: Any) -> int:
    """Return the model's opset. Raises BadValueError for an unknown opset, and for functions and sparse weights."""
    versions = [one.version for one in model.opset_import if one.domain in ("", "ai.onnx")]
    newest = require_onnx().defs.onnx_opset_version()
    if len(versions) != 1 or not OLDEST_OPSET <= versions[0] <= newest:
        has = ", ".join(map(str, versions[:5])) or "none"
        raise BadValueError(f"has opset {has}; export it with one of {OLDEST_OPSET} to {newest}")
    if model.functions:
        raise BadValueError(
            f"defines the function {format_for_error(model.functions[0].name)}; export it without functions"
        )
    if model.graph.sparse_initializer:
        raise BadValueError("stores sparse weights; store them dense")
    return int(versions[0])


def _source_of_own_export(model: Any) -> Source | None:
    """Return the network and arrays of a model that ``main.py export`` wrote; None for other and changed models."""
    texts = [one.value for one in model.metadata_props if one.key == DESCRIPTION and isinstance(one.value, str)]
    if not texts:
        return None
    try:
        about = parse_description(texts[0])
        tensors = {one.name: one for one in model.graph.initializer}
        origins = {name: torch_key(name) for name in source_array_shapes(about.network) if torch_key(name) in tensors}
        arrays = {name: as_float32(name, tensor_array(tensors[there], name), []) for name, there in origins.items()}
        source = Source(about.network, arrays, origins, input_scale=about.input_scale, classes=about.classes)
        ours = {one.name: one.array for one in convert_arrays(source)}
        return source if onnx_model(about, ours).graph == model.graph else None
    except (BadValueError, UserError):
        return None


def _build_source(chain: OnnxGraph, name: str, metadata: Mapping[str, str]) -> Source:
    """Return the network, named ``name``, and the arrays of a graph. metadata: key → value; may name the classes."""
    found, notes = chain.stack.found, chain.stack.notes
    for one in found:
        one.arrays = {end: as_float32(one.origins.get(end, ""), array, notes) for end, array in one.arrays.items()}
    scale = _pixel_scale(chain, notes)
    network, arrays, origins = assemble_network(found, name, "imported from an ONNX model", chain.input_shape, scale)
    classes = parse_class_names(metadata, network, notes)
    return Source(network, arrays, origins, tuple(notes), classes=classes)


def _byte_scale(chain: OnnxGraph) -> float:
    """Return the factor from bytes to the pixels that the model reads: 1 for pixels from 0 to 255, 1/255 for 0 to 1.

    A model that reads bytes, or multiplies its images by less than BRIGHT, reads pixels from 0 to 255.
    """
    bright = chain.contrast is not None and chain.contrast < BRIGHT
    return 1.0 if chain.reads_bytes or bright else PIXEL_SCALE


def _pixel_scale(chain: OnnxGraph, notes: list[str]) -> float:
    """Return the network's factor for pixel bytes: the model's times ``_byte_scale``. notes: gets what was assumed."""
    unit, factor = _byte_scale(chain), 1.0 if chain.factor is None else chain.factor
    if unit != 1:
        scaled = "does not scale" if chain.contrast is None else f"scales by {chain.contrast:.3g}"
        notes.append(f"its images are floats, which it {scaled}: taken as pixels from 0 to 1")
    if np.float32(factor) == np.float32(PIXEL_SCALE) and unit == 1:
        return PIXEL_SCALE
    if not 0 < factor < np.inf:
        raise BadValueError(f"scales its images by {factor:g}; export another network")
    return factor * unit
