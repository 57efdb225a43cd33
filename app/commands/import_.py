"""``main.py import``: turn a file of another system into a weights file of this program."""

from dataclasses import replace
from typing import Any

import numpy as np

from app.commands.graph import layer_table
from app.commands.options.import_ import ImportRequest
from app.errors import UserError
from app.files.checks import BadValueError
from app.interchange.channels_first import logits
from app.interchange.layout import Converted, converted
from app.interchange.readers import read
from app.interchange.source import Asked, Source
from app.layers import Argmax, Resize, Softmax
from app.network.graph import Graph, build, find_network
from app.network.weights import Weights, save_weights
from app.output import check_new
from app.text import Column, fields, paragraph, table, terminal_width

IMAGES = 64  # compared
CLOSE = 1e-3  # of the largest logit: float32 engines round in another order


def import_(request: ImportRequest) -> int:
    """Read, convert, compare, write and tell. Returns 0. Raises UserError; then nothing is written."""
    check_new(request.out, request.overwrite)
    network = None if request.network is None else find_network(request.network)
    name, source = read(request.file, Asked(network, None, request.size))
    try:
        found = converted(source)
    except BadValueError as error:
        raise UserError(f"{request.file}: {error}") from error
    arrays = {one.name: one.array for one in found}
    about: dict[str, Any] = {"classes": source.classes, "input_scale": source.input_scale}
    graph = build(source.network, Weights(arrays, source.network.name, request.file, **about))
    difference = largest_difference(source, graph)
    save_weights(request.out, arrays, network=source.network, overwrite=request.overwrite, **about)
    width = terminal_width()
    print("\n".join([*paragraph(f"{request.file}: {name}", width), *_arrays(source, found, width)]))
    print("\n".join([*paragraph(f"network {source.network.name}", width), *layer_table(graph, width)]))
    checked = "plain NumPy in the file's own layout; no engine of the source runs here"
    engine = checked if source.engine is None else source.engine.name
    facts = {
        "notes": "; ".join(source.notes),
        "checked": f"largest difference of {IMAGES} images' logits: {difference:.2g}, by {engine}",
        "written": str(request.out),
    }
    print("\n".join(fields([(head, told) for head, told in facts.items() if told], width)))
    return 0


def largest_difference(source: Source, graph: Graph) -> float:
    """Compare our float64 logits of random images with those of the source's engine, or plain NumPy without one.

    Raises UserError if they differ by more than rounding.
    """
    images = np.random.default_rng(0).integers(0, 256, (IMAGES, *graph.network.input_shape), np.uint8)
    resized = [step for step in graph.steps if isinstance(step.layer, Resize)]
    if source.engine is None:
        pixels = images
        for step in resized:
            pixels = step.layer.reference(pixels, {})
        theirs = logits(source, pixels.astype(np.float64) * graph.pixel_scale(images.dtype))
    else:
        theirs = source.engine.logits(images)
    kept = tuple(step for step in graph.steps if not isinstance(step.layer, Softmax | Argmax))
    _, ours = replace(graph, steps=kept).forward(images, np.float64)
    difference = float(np.abs(ours - theirs).max())
    if not difference <= CLOSE * max(float(np.abs(ours).max()), 1e-30):
        raise UserError(f"the converted network gives other scores (by {difference:.2g}); {REMEDY}")
    return difference


REMEDY = "its weights are too large for float32, or damaged: get a fresh copy"


def _arrays(source: Source, found: list[Converted], width: int) -> list[str]:
    """One line for each array of the written file."""
    columns = [Column(head, left=True) for head in ("array", "in the file", "shape", "permuted")]
    rows = [[one.name, source.origins.get(one.name, ""), str(one.array.shape), one.change] for one in found]
    return table(columns, rows, width)
