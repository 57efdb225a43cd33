"""Run ``main.py export``: write a network and its weights for other systems."""

from collections.abc import Callable, Mapping

import numpy as np

from app.base.errors import UserError, did_you_mean_hint
from app.commands.export import ExportRequest
from app.files.checks import BadValueError
from app.files.writing import replace_atomically
from app.interchange.layout import format_shape, to_channels_first
from app.interchange.named_arrays import Description, NamedArrays, torch_key
from app.interchange.npz import build_npz_bytes
from app.interchange.onnx_export import IMAGES, LABELS, SCORES, onnx_model
from app.interchange.safetensors_file import build_safetensors_bytes
from app.network.graph import build_graph, find_network, require_weights
from app.network.weights import load_weights
from app.records.networks import Export
from app.terminal.output import publish_report
from app.terminal.text import Column, fields, paragraph, table


def export(request: ExportRequest) -> int:
    """Read the weights, convert and write them, print a report. Return 0. Raises UserError, and then writes nothing."""
    ending = request.out.suffix.lower()
    if ending not in WRITERS:
        hint = did_you_mean_hint(ending, WRITERS)
        raise UserError(f"--out {request.out} has no known ending: let it end with one of {', '.join(WRITERS)}{hint}")
    if request.file is None and request.network is None:
        raise UserError("nothing to export is named: name a weights file, or a network with --network")
    asked = None if request.network is None else find_network(request.network)
    weights = require_weights(str(request.network), "FILE") if request.file is None else load_weights(request.file)
    graph = build_graph(asked or weights.stored_network(), weights)
    try:
        content = WRITERS[ending](Description(graph.network, graph.input_scale, weights.classes), graph.parameters)
    except BadValueError as error:
        raise UserError(f"--out {request.out} {error}") from error
    with replace_atomically(request.out, overwrite=request.output.overwrite) as temporary:
        temporary.write_bytes(content)
    document: Export = {
        "schema": "lenet5-inference/export/1",
        "weights": str(weights.path),
        "network": graph.network.name,
        "format": ending.removeprefix("."),
        "arrays": [
            {"name": name, "written_as": exported_array_name(ending, name), "shape": list(array.shape)}
            for name, array in graph.parameters.items()
        ],
        "input": list(graph.network.input_shape),
        "classes": graph.class_count,
        "pixel_scale": graph.input_scale,
        "written": str(request.out),
        "bytes": len(content),
    }
    publish_report(document, as_text, request.output)
    return 0


def as_text(document: Export, width: int) -> str:
    """Return the report as text."""
    columns = [Column(head, left=True) for head in ("array", "in the file", "shape here")]
    rows = [[one["name"], one["written_as"], format_shape(tuple(one["shape"]))] for one in document["arrays"]]
    onnx, sizes = document["format"] == "onnx", ", ".join(map(str, document["input"]))
    about = {
        "input": f"{IMAGES} (N, {sizes}) uint8" if onnx else "",
        "outputs": f"{SCORES} (N, {document['classes']}) float32, {LABELS} (N) int64" if onnx else "",
        "pixel scale": f"{document['pixel_scale']:.10g}, for bytes 0 to 255",
        "written": f"{document['written']}, {document['bytes']:,} bytes",
    }
    head = f"{document['weights']}: network {document['network']}"
    told = fields([(head, told) for head, told in about.items() if told], width)
    return "\n".join([*paragraph(head, width), *table(columns, rows, width), *told])


Arrays = Mapping[str, np.ndarray]


def _encode_onnx(description: Description, arrays: Arrays) -> bytes:
    content: bytes = onnx_model(description, arrays).SerializeToString(deterministic=True)
    return content


def _encode_safetensors(description: Description, arrays: Arrays) -> bytes:
    """Return a safetensors file with PyTorch's names and layouts, as ``load_state_dict`` expects them."""
    theirs = to_channels_first(description.network, arrays).items()
    return build_safetensors_bytes(NamedArrays({torch_key(name): array for name, array in theirs}, description))


def _encode_npz(description: Description, arrays: Arrays) -> bytes:
    """Return the arrays as an NPZ file, with the names and layouts of this program's weights files."""
    return build_npz_bytes(NamedArrays(arrays, description))


# Suffix → function that returns the file's content, given the description and the arrays of a weights file.
WRITERS: dict[str, Callable[[Description, Arrays], bytes]] = {
    ".onnx": _encode_onnx,
    ".safetensors": _encode_safetensors,
    ".npz": _encode_npz,
}


def exported_array_name(ending: str, name: str) -> str:
    """Return the name of the array ``name`` in a file with the suffix ``ending``, such as ``.npz``."""
    return name if ending == ".npz" else torch_key(name)
