"""Write files in Keras' layout without Keras, and compute their layers in plain NumPy."""

import io
import json
import re
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import h5py
import numpy as np

from app.layers import Argmax, Softmax
from app.network.graph import Graph

Model = Sequence[tuple[str, dict[str, Any], dict[str, np.ndarray]]]  # of each layer: class, settings, arrays by role


def scores_of(graph: Graph, images: np.ndarray) -> np.ndarray:
    """Return the network's scores before a softmax, (B, classes) float32. images: (B, H, W, C) uint8."""
    steps = tuple(step for step in graph.steps if not isinstance(step.layer, Softmax | Argmax))
    _, scores = replace(graph, steps=steps).forward(images.transpose(0, 3, 1, 2), np.float32)
    return scores


def configuration(model: Model, shape: Sequence[int | None]) -> dict[str, Any]:
    """Return the configuration of a Sequential model as Keras 3 writes it; layers are named by number."""
    first = {"class_name": "InputLayer", "config": {"name": "input", "batch_shape": [None, *shape]}}
    layers = [
        {
            "module": "keras.layers",
            "class_name": kind,
            "config": {"name": f"n{at}", **settings},
            "registered_name": None,
        }
        for at, (kind, settings, _) in enumerate(model)
    ]
    return {"module": "keras", "class_name": "Sequential", "config": {"name": "s", "layers": [first, *layers]}}


def functional(model: Model, shape: Sequence[int | None]) -> dict[str, Any]:
    """Return the configuration of a functional model with these layers in a row."""
    layers = configuration(model, shape)["config"]["layers"]
    for at, layer in enumerate(layers):
        layer["name"] = layer["config"]["name"]
        tensor = {
            "class_name": "__keras_tensor__",
            "config": {"keras_history": [layers[at - 1]["config"]["name"], 0, 0]},
        }
        layer["inbound_nodes"] = [{"args": [tensor], "kwargs": {"training": None}}] if at else []
    ends = {"input_layers": [["input", 0, 0]], "output_layers": [[layers[-1]["name"], 0, 0]]}
    return {"class_name": "Functional", "config": {"name": "f", "layers": layers, **ends}}


def _text(config: Any) -> str:
    return config if isinstance(config, str) else json.dumps(config)


def hdf5(arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any] | None = None) -> bytes:
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for path, array in arrays.items():
            file[path] = array
        file.attrs.update(attributes or {})
    return stream.getvalue()


def zipped(members: Mapping[str, bytes | str], *, packed: bool = False) -> bytes:
    stream, method = io.BytesIO(), zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)  # without the time: the same bytes each time
    return stream.getvalue()


def declaring(members: Mapping[str, bytes | str], name: str, size: int) -> bytes:
    """Return a packed archive whose directory declares ``size`` bytes for the member ``name``."""
    archive = bytearray(zipped(members, packed=True))
    struct.pack_into("<I", archive, archive.rindex(name.encode()) - 22, size)
    return bytes(archive)


def keras_members(model: Model, config: Any) -> dict[str, bytes | str]:
    """Return the members of a .keras file by name, including the arrays of an optimiser."""
    arrays: dict[str, np.ndarray] = {"optimizer/vars/0": np.ones(3)}
    counts: dict[str, int] = {}
    for kind, _, own in model:
        group = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower().replace("2_d", "2d").replace("pre_lu", "p_re_lu")
        counts[group] = counts.get(group, -1) + 1
        place = f"layers/{group}{f'_{counts[group]}' * bool(counts[group])}"
        arrays |= {f"{place}/vars/{at}": array for at, array in enumerate(own.values())}
    about = json.dumps({"keras_version": "3.15.1"})
    return {"metadata.json": about, "config.json": _text(config), "model.weights.h5": hdf5(arrays)}


def keras_zip(model: Model, config: Any) -> bytes:
    return zipped(keras_members(model, config))


def keras_hdf5(model: Model, config: Any) -> bytes:
    arrays = {
        f"model_weights/n{n}/s/n{n}/{role}": one for n, (_, _, own) in enumerate(model) for role, one in own.items()
    }
    return hdf5(arrays, {"model_config": _text(config), "keras_version": "3.15.1", "backend": "torch"})


def computed(model: Model, x: np.ndarray) -> np.ndarray:
    """Return the layers' result for x (B, H, W, C) in float64, without a softmax, number by number as defined."""
    x = x.astype(np.float64)
    for kind, settings, arrays in model:
        match kind:
            case "Rescaling":
                x = x * np.array(settings["scale"]) + np.array(settings.get("offset", 0))
            case "Conv2D":
                x = _windows(x, settings, len(arrays["kernel"]), arrays["kernel"]) + arrays.get("bias", 0)
            case "MaxPooling2D" | "AveragePooling2D":
                size, *_ = np.ravel(settings.get("pool_size", 2)).tolist()
                strides, *_ = np.ravel(settings.get("strides", size)).tolist()
                what = np.max if kind.startswith("M") else np.mean
                x = _windows(x, {**settings, "strides": strides}, size, what)
            case "ZeroPadding2D":
                pads = np.broadcast_to(np.array(settings.get("padding", 1)), (2, 2)).tolist()
                x = np.pad(x, ((0, 0), *pads, (0, 0)))
            case "Normalization":
                x = x - np.array(arrays.get("mean", settings["mean"]))
                x = x / np.sqrt(np.array(arrays.get("variance", settings["variance"])))
            case "Flatten":
                x = x.reshape(len(x), -1)
            case "Reshape":
                x = x.reshape(len(x), *settings["target_shape"])
            case "Dense":
                x = x @ arrays["kernel"] + arrays.get("bias", 0)
            case "GlobalAveragePooling2D":
                x = x.mean(axis=(1, 2))
            case "BatchNormalization":
                deviation = np.sqrt(arrays["moving_variance"] + settings["epsilon"])
                x = (x - arrays["moving_mean"]) / deviation * arrays.get("gamma", 1) + arrays.get("beta", 0)
        activation = "leaky_relu" if kind in ("ReLU", "LeakyReLU", "PReLU") else settings.get("activation")
        default = {"ReLU": 0.0, "LeakyReLU": 0.3, "PReLU": 0.25}.get(kind, 0.2)
        slope: float = settings.get("negative_slope", settings.get("alpha", default)) or 0.0
        x = np.maximum(x, slope * x) if activation == "leaky_relu" else np.maximum(x, 0) if activation == "relu" else x
        x = np.tanh(x) if activation == "tanh" else x
    return x


def _windows(x: np.ndarray, settings: dict[str, Any], size: int, what: Any) -> np.ndarray:
    """Slide a window over maps (B, H, W, C). what: filters, or a function of the window's pixels inside the map."""
    stride, sides = settings.get("strides", 1), x.shape[1:3]
    same = settings.get("padding") == "same"
    counts = [-(-side // stride) if same else (side - size) // stride + 1 for side in sides]
    starts = [max((n - 1) * stride + size - side, 0) // 2 for n, side in zip(counts, sides, strict=True)]
    y = np.zeros((len(x), *counts, x.shape[3] if callable(what) else what.shape[3]))
    for i, j in product(*map(range, counts)):
        top, left = i * stride - starts[0] * same, j * stride - starts[1] * same
        inside = [
            (p, q) for p, q in product(range(size), repeat=2) if 0 <= top + p < sides[0] and 0 <= left + q < sides[1]
        ]
        pixels = np.stack([x[:, top + p, left + q] for p, q in inside])
        if callable(what):
            y[:, i, j] = what(pixels, axis=0)
        else:
            y[:, i, j] = np.einsum("nbc,ncm->bm", pixels, np.stack([what[p, q] for p, q in inside]))
    return y
