"""Build the page that classifies pictures in a browser, with its JavaScript, weights and test images in one file."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.ladder.pictures import ExtraPage
from app.layers import AvgPool, Conv2d, Flatten, Layer, Linear, Relu
from app.network.graph import Graph, load_network
from data_tools.fashion_mnist import Split, find_split_directory, open_split

NETWORK = "lenet5"
SAMPLES = 100  # test images in the page
SCRIPTS = ("network", "resample", "masks", "surface", "ground", "prepare", "page")  # each uses only scripts before it
FOLDER = Path(__file__).with_name("scripts")
# Layer that the scripts compute → its fields that they read. page.js finds the greatest score.
SIZES: dict[type[Layer], tuple[str, ...]] = {
    Conv2d: ("maps", "kernel"),
    Relu: (),
    AvgPool: ("window",),
    Flatten: (),
    Linear: ("outputs",),
}
REMEDY = "`python -m data_tools fetch` gets them; then make the pages again"


def playground_page(samples: Split | None) -> ExtraPage:
    """Return the page that runs ``lenet5`` with its shipped weights.

    samples: test images, of which the page offers the first 100; None: it offers no images. Raises UserError if the
    weights are missing or damaged.
    """
    graph, weights = load_network(NETWORK, None)
    content: dict[str, Any] = {
        "classes": weights.classes,
        "shape": graph.network.input_shape,
        "scale": graph.input_scale,
        "layers": [_layer_json(step.layer, graph) for step in graph.steps if type(step.layer) in SIZES],
    }
    if samples is not None:
        images = samples.images[:SAMPLES]
        content |= {"images": _to_base64(images), "labels": samples.labels[:SAMPLES].tolist()}
    script, style = page_script(), _page_css()
    values = {
        "network": NETWORK,
        "samples": 0 if samples is None else len(content["labels"]),
        "remedy": REMEDY,
        "script": script,
        "style": style,
        "hashes": {"script": _content_security_policy_hash(script), "style": _content_security_policy_hash(style)},
    }
    return ExtraPage("playground", "Playground", to_script_json(content), "playground", values)


def find_test_images() -> Split | None:
    """Return the test images of a local directory, or None if there is none. Raises UserError for damaged files."""
    directory = find_split_directory("test")
    return None if directory is None else open_split("test", directory)


def page_script(names: tuple[str, ...] = SCRIPTS) -> str:
    """Return the texts of the named scripts, joined into one."""
    return "\n".join((FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in names)


def _page_css() -> str:
    site = (Path(__file__).with_name("static") / "style.css").read_text(encoding="utf-8")
    return site + (FOLDER / "playground.css").read_text(encoding="utf-8")


def _content_security_policy_hash(text: str) -> str:
    """Return the expression by which a Content Security Policy allows the inline script or style sheet ``text``."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def to_script_json(content: Any) -> str:
    """Return ``content`` as JSON that is safe in an HTML script element: without ``<``."""
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def _to_base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _layer_json(layer: Layer, graph: Graph) -> dict[str, Any]:
    """Return what the scripts need of a layer: its kind, name and sizes, and its parameters as float16 in base64."""
    found = {"kind": layer.kind, "name": layer.name, **{name: getattr(layer, name) for name in SIZES[type(layer)]}}
    for name, parameter in (("weights", layer.name), ("bias", f"{layer.name}_bias")):
        if parameter in graph.parameters:
            found[name] = _to_base64(_to_exact_float16(graph.parameters[parameter], parameter))
    return found


def _to_exact_float16(array: np.ndarray, name: str) -> np.ndarray:
    halves = array.astype("<f2")
    if not np.array_equal(halves, array):
        raise UserError(f"the page holds weights as float16, and {name} of {NETWORK} is not exact in it")
    return halves
