"""Run ``main.py import``: convert a file of another system to a weights file of this program."""

import re
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.commands.import_ import ImportRequest
from app.files.checks import BadValueError, format_for_error, text_check
from app.files.reading import may_exist, read_file
from app.interchange.engines import numpy_logits
from app.interchange.layout import ConvertedArray, convert_arrays
from app.interchange.named_arrays import NoNetworkError
from app.interchange.source import ImportOptions, Source, read_source_file
from app.layers import Argmax, Resize, Softmax
from app.network.definitions import Network
from app.network.graph import Graph, build_graph, find_network
from app.network.network import LEAST_SCALE, MOST_SCALE, LayerError, check_layers
from app.network.toml import network_toml, parse_scale
from app.network.weights import Weights, save_weights
from app.records.networks import Enlargement, Import
from app.terminal.output import publish_report
from app.terminal.text import Column, fields, paragraph, table
from app.tools.graph import layer_table

IMAGES = 64  # random images to compare logits on
# Limits so that the comparison takes less than 1 GB: numbers between two layers for all compared images, and numbers in
# the windows of a convolution for one image.
MAX_NUMBERS, MAX_WINDOWS = 1 << 22, 1 << 25
PLAIN = "plain NumPy in the file's own layout; no engine of this format runs here"
MAX_CLASSES_BYTES = 1 << 20
MAX_NAME = 60  # largest number of characters of a network name that is derived from a file name
CLOSE = 1e-3  # allowed difference ÷ largest logit: float32 engines round in another order


def import_(request: ImportRequest) -> int:
    """Read and convert a file, compare scores, write the weights and print a report. Return 0. Raises UserError."""
    asked = ImportOptions(
        None if request.network is None else find_network(request.network),
        request.symbol,
        request.size,
        _derive_network_name(request.file),
    )
    scale = None if request.pixel_scale is None else _parse_scale(request.pixel_scale)
    try:
        name, source, found = read_foreign_file(request.file, asked)
    except UserError as error:
        if isinstance(error.__cause__, NoNetworkError) and error.__cause__.guess is not None:
            print(network_toml(error.__cause__.guess), end="")
        raise
    network = _apply_user_settings(source.network, request.rule, scale)
    (count,) = network.steps[-1].in_shape
    classes = source.classes if request.classes is None else _parse_classes(request.classes, count)
    arrays = {one.name: one.array for one in found}
    weights = Weights(arrays, source.network.name, request.file, source.classes, source.scale)
    difference = largest_difference(source, build_graph(source.network, weights))
    scale = source.scale if scale is None else scale
    engine = None if source.engine is None else source.engine.name
    source = replace(source, arrays={}, engine=None)  # their memory is free for the file to write
    graph = build_graph(network, replace(weights, input_scale=scale))
    about: dict[str, Any] = {"classes": classes, "input_scale": scale}
    save_weights(request.out, arrays, network=network, overwrite=request.output.overwrite, **about)
    document = _build_document(request, name, source, found, graph, difference, engine)
    publish_report(document, lambda _, width: _as_text(document, graph, width), request.output)
    return 0


def read_foreign_file(file: Path, asked: ImportOptions) -> tuple[str, Source, list[ConvertedArray]]:
    """Return the file's format, checked content and converted arrays. asked: the user's options. Raises UserError."""
    form, source = read_source_file(file, asked)
    try:
        check_layers(source.network.input_shape, source.network.layers)
        _check_window_sizes(source.network)
        return form.name, source, convert_arrays(source)
    except (BadValueError, LayerError) as error:
        raise UserError(f"{file}: {error}") from error


def _check_window_sizes(network: Network) -> None:
    """Raise BadValueError if a convolution's im2col array would take more than 1 GB when scores are compared."""
    for step in network.steps:
        filters = step.parameter_shapes.get(step.layer.name, ())
        size = prod(step.out_shape[1:]) * prod(filters[:-1])
        if len(filters) == 4 and size > MAX_WINDOWS:
            raise BadValueError(
                f"has windows of {size:,} numbers an image in {step.layer.name}, more than the {MAX_WINDOWS:,} that "
                "import compares; make its images or filters smaller"
            )


def _compared_image_count(network: Network) -> int:
    """Return the number of images to compare: fewer than IMAGES if the network has large activations."""
    largest = max(prod(shape) for step in network.steps for shape in (step.in_shape, step.out_shape))
    return min(IMAGES, max(MAX_NUMBERS // largest, 1))


def _derive_network_name(file: Path) -> str:
    """Return a network name made from the file's name: lower-case letters, digits and _, with a letter first."""
    name = re.sub(r"[^a-z0-9_]", "_", file.stem.lower()).lstrip("_0123456789")
    return name[:MAX_NAME] or "imported"


def _parse_scale(text: str) -> float:
    try:
        return parse_scale(text if "/" in text else float(text))
    except ValueError:
        limits = f"a number from {LEAST_SCALE:.2g} to {MOST_SCALE:.2g}, or a fraction such as 1/255"
        raise UserError(f"--pixel-scale {format_for_error(text)} is not {limits}") from None


def _parse_classes(text: str, count: int) -> tuple[str, ...]:
    """Return the names of ``count`` classes, from a list with commas or from a file with one name a line."""
    path = Path(text)
    try:
        if "," not in text or may_exist(path):
            names = read_file(path, MAX_CLASSES_BYTES).decode("utf-8-sig").splitlines()
        else:
            names = text.split(",")
        found: tuple[str, ...] = tuple(text_check()(name.strip()) for name in names)
    except ValueError as error:  # UnicodeDecodeError is one
        raise UserError(
            f"--classes {format_for_error(text)}: {format_for_error(str(error))}; name each class"
        ) from None
    if len(found) != count or not all(found):
        raise UserError(
            f"--classes names {sum(map(bool, found)):,} classes, and the network has {count}; name each class"
        )
    return found


def _apply_user_settings(network: Network, rule: str | None, scale: float | None) -> Network:
    """Return the network with the user's resize rule and pixel scale, if given. Raises UserError."""
    if rule is not None:
        if not any(isinstance(layer, Resize) for layer in network.layers):
            raise UserError(f"network {network.name} enlarges no images: leave --rule {rule} out")
        layers = tuple(replace(layer, rule=rule) if isinstance(layer, Resize) else layer for layer in network.layers)
        network = replace(network, layers=layers)
    return network if scale is None else replace(network, pixel_scale=scale)


def largest_difference(source: Source, graph: Graph) -> float:
    """Return the largest difference between our float64 logits of random images and the source's logits.

    The source's engine computes its logits, or NumPy if there is none. Raises UserError if the difference exceeds
    rounding errors.
    """
    count = _compared_image_count(graph.network)
    images = np.random.default_rng(0).integers(0, 256, (count, *graph.network.input_shape), np.uint8)
    kept = tuple(step for step in graph.steps if not isinstance(step.layer, Softmax | Argmax))
    _, ours = replace(graph, steps=kept).forward(images, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite and NaN values show in the difference
        theirs = numpy_logits(source, images) if source.engine is None else source.engine.logits(images)
        difference = float(np.abs(ours - theirs).max())
    if not difference <= CLOSE * max(float(np.abs(ours).max()), 1e-30):
        raise UserError(f"the converted network gives other scores (by {difference:.2g}); {REMEDY}")
    return difference


REMEDY = "its weights are too large for float32, or damaged: get a fresh copy"


def _build_document(
    request: ImportRequest,
    name: str,
    source: Source,
    found: list[ConvertedArray],
    graph: Graph,
    difference: float,
    engine: str | None,
) -> Import:
    """Return the JSON document. name: the file's format. difference: the largest of our logits from ``engine``'s."""
    first = graph.network.layers[0]
    enlarged: Enlargement | None = {"size": first.size, "rule": first.rule} if isinstance(first, Resize) else None
    return {
        "schema": "lenet5-inference/import/1",
        "file": str(request.file),
        "format": name,
        "arrays": [
            {"name": one.name, "name_there": source.origins.get(one.name, ""), "before": one.before, "after": one.after}
            for one in found
        ],
        "network": graph.network.name,
        "notes": list(source.notes),
        "enlarged": enlarged,
        "pixel_scale": graph.input_scale,
        "difference": difference,
        "engine": engine,
        "written": str(request.out),
    }


def _as_text(document: Import, graph: Graph, width: int) -> str:
    """Return the document and a table of the graph's layers as text."""
    columns = [Column(head, left=True) for head in ("array", "name there", "in the file", "in the weights file")]
    rows = [[one["name"], one["name_there"], one["before"], one["after"]] for one in document["arrays"]]
    images, enlarged = f"pixels of 0 to 255 times {document['pixel_scale']:.6g}", document["enlarged"]
    if enlarged:
        images = f"enlarged to {enlarged['size']} x {enlarged['size']}, rule {enlarged['rule']}; {images}"
    count = _compared_image_count(graph.network)
    largest = f"largest difference of the logits of {count} random images: {document['difference']:.2g}"
    facts = [
        *(("note", note) for note in document["notes"]),
        ("images", images),
        ("check", f"{largest}, by {document['engine'] or PLAIN}"),
        ("written", document["written"]),
    ]
    return "\n".join(
        [
            *paragraph(f"{document['file']}: {document['format']}", width),
            *table(columns, rows, width),
            *paragraph(f"network {document['network']}", width),
            *layer_table(graph, width),
            *fields(facts, width),
        ]
    )
