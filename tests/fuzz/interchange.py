"""Files of named arrays and ONNX models: damaged outside, or well-formed with other values inside."""

import io
import json
import zipfile
from importlib.util import find_spec
from pathlib import Path
from random import Random

import numpy as np
from onnx import ModelProto

from app.base.errors import UserError
from app.files.checks import BadValueError
from app.interchange.layout import convert_arrays, to_channels_first
from app.interchange.named_arrays import Description, NamedArrays, torch_name
from app.interchange.npz import npz_content
from app.interchange.onnx_export import onnx_model
from app.interchange.safetensors_file import safetensors_content
from app.interchange.source import Asked, read
from app.network.graph import build
from app.network.network import Network
from app.network.toml import parse_network
from app.network.weights import Weights
from tests.fuzz.harness import Pair, Target
from tests.fuzz.mutate import EXTREMES, damaged, other_json
from tests.support.networks_for_tests import layers_toml, random_graph

LAYERS = (
    "resize size=7",
    "conv2d maps=2 kernel=3",
    "relu",
    "maxpool window=2 ceil=true",
    "flatten",
    "linear outputs=3",
)
NETWORK = parse_network('name = "tiny"\ninput = [1, 6, 6]\n' + layers_toml(*LAYERS), "tiny.toml")
ARRAYS = dict(random_graph(NETWORK).parameters)
DESCRIPTION = Description(NETWORK, 1 / 255, ("a", "b", "c"))


def imports(path: Path, asked: Network | None) -> None:
    """What the command does before it writes: the arrays are the network's, float32 and finite."""
    _, source = read(path, Asked(asked))
    try:
        arrays = {one.name: one.array for one in convert_arrays(source)}
    except BadValueError as error:
        raise UserError(str(error)) from None
    assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in arrays.values())
    build(source.network, Weights(arrays, source.network.name, path, source.classes, source.scale))


def make_safetensors(folder: Path) -> Pair:
    """Damaged bytes, or another header before the same numbers."""
    theirs = {torch_name(name): array for name, array in to_channels_first(NETWORK, ARRAYS).items()}
    good = [safetensors_content(NamedArrays(ARRAYS, DESCRIPTION)), safetensors_content(NamedArrays(theirs))]

    def generate(rng: Random) -> bytes:
        content = rng.choice(good)
        if rng.random() < 0.5:
            return damaged(rng, content)
        end = 8 + int.from_bytes(content[:8], "little")
        header = other_json(rng, json.loads(content[8:end]))
        size = len(header) if rng.random() < 0.95 else rng.choice(EXTREMES) % 2**64
        return size.to_bytes(8, "little") + header + content[end:]

    return generate, lambda path: imports(path, NETWORK)


def make_npz(folder: Path) -> Pair:
    """Damaged archives, and whole ones with damaged members."""
    good = npz_content(NamedArrays(ARRAYS, DESCRIPTION))
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def generate(rng: Random) -> bytes:
        if rng.random() < 0.4:
            return damaged(rng, good)
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
            chosen = rng.choice(list(members))
            for name, content in members.items():
                if name == chosen and rng.random() < 0.3:  # the header, which is text
                    shape = rng.choice(((10**12,), (-1, 3), (2**63, 2**63), (), (0,), tuple([1] * 70)))
                    content = content[:10] + str({"descr": "<f4", "fortran_order": False, "shape": shape}).encode()
                archive.writestr(name, damaged(rng, content) if name == chosen else content)
        return stream.getvalue()

    return generate, lambda path: imports(path, None)


def make_onnx(folder: Path) -> Pair:
    """Damaged bytes, and models whose parts are left out, doubled, exchanged or have other numbers."""
    model = onnx_model(DESCRIPTION, ARRAYS)
    good = model.SerializeToString()

    def generate(rng: Random) -> bytes:
        if rng.random() < 0.5:
            return damaged(rng, good)
        copy = ModelProto()
        copy.ParseFromString(good)
        if rng.random() < 0.8:
            del copy.metadata_props[:]
            del copy.graph.node[:4]  # the enlargement
            copy.graph.node[0].input[0] = copy.graph.input[0].name
        for _ in range(rng.randint(0, 2)):
            other_part(rng, copy)
        return bytes(copy.SerializeToString())

    return generate, lambda path: imports(path, None)


def other_part(rng: Random, model: ModelProto) -> None:
    """Change one node, attribute, constant or size of the graph."""
    graph = model.graph
    node = rng.choice(graph.node)
    match rng.randrange(7):
        case 0:
            node.op_type = rng.choice(graph.node).op_type
        case 1:
            node.input[rng.randrange(len(node.input))] = rng.choice(rng.choice(graph.node).input)
        case 2:
            graph.node.remove(node)
        case 3:
            graph.node.insert(rng.randrange(len(graph.node)), node)
        case 4 if node.attribute:
            attribute = rng.choice(node.attribute)
            attribute.i = rng.choice(EXTREMES) % 2**63
            attribute.ints.append(rng.choice(EXTREMES) % 2**63)
            attribute.type = rng.choice((attribute.type, 1, 2, 3, 6, 7))
        case 5:
            constant = rng.choice(graph.initializer)
            constant.dims.append(rng.choice(EXTREMES) % 2**63)
            constant.data_type = rng.choice((constant.data_type, *range(17)))
        case _:
            rng.choice(graph.input[0].type.tensor_type.shape.dim).dim_value = rng.choice(EXTREMES) % 2**63


TARGETS = (
    *((Target("safetensors", 1400, make_safetensors),) if find_spec("safetensors") else ()),  # of an extra
    Target("npz", 1400, make_npz),
    Target("onnx", 700, make_onnx),
)
