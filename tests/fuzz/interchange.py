"""Files of named arrays, ONNX and Keras models: damaged outside, or well-formed with other values inside."""

import io
import json
import zipfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from random import Random

import numpy as np
from onnx import ModelProto

from app.base.errors import UserError
from app.interchange.layout import to_channels_first
from app.interchange.named_arrays import Description, NamedArrays, torch_key
from app.interchange.npz import build_npz_bytes
from app.interchange.onnx_export import onnx_model
from app.interchange.safetensors_file import build_safetensors_bytes
from app.interchange.source import ImportOptions
from app.network.network import Network
from app.network.toml import parse_network
from app.tools.import_ import read_foreign_file
from tests.fuzz.harness import Pair, Target
from tests.fuzz.mutate import EXTREMES, damaged, other_json
from tests.fuzz.old_systems import check
from tests.interchange import test_keras as keras
from tests.support.keras_files import Model, configuration, functional, keras_hdf5, keras_members, keras_zip, zipped
from tests.support.networks_for_tests import layers_toml, random_graph
from tests.support.onnx_steps import DIV, POOL, SIZES, Step, conv, floats, gemm, model_of, norm, whole

LAYERS = (
    *("resize size=7", "conv2d maps=2 kernel=3", "relu", "maxpool window=2 ceil=true"),
    *("flatten", "linear outputs=3"),
)
NETWORK = parse_network('name = "tiny"\ninput = [1, 6, 6]\n' + layers_toml(*LAYERS), "tiny.toml")
ARRAYS = dict(random_graph(NETWORK).parameters)
DESCRIPTION = Description(NETWORK, 1 / 255, ("a", "b", "c"))
STEPS: list[Step] = [  # what import folds or leaves out
    *(("Sub", [floats(1, 1, 1)], {}), DIV, conv(1, 2), ("Identity",), norm(2)),
    *(("Clip", [np.float32(0), np.float32(6)], {}), ("LeakyRelu",)),
    ("AveragePool", [], {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1, "ceil_mode": 1}),
    *(("PRelu", [np.full(1, 0.25, np.float32)], {}), ("Pad", [whole(*[0] * 8)], {}), POOL),
    *(("ReduceMean", [whole(2, 3)], {}), ("Squeeze", [whole(2, 3)], {}), *SIZES, gemm(2, 3), ("LogSoftmax",)),
]


def imports(path: Path, asked: Network | None) -> None:
    """What the command does before it compares scores."""
    check(*read_foreign_file(path, ImportOptions(asked))[1:])


def make_safetensors(folder: Path) -> Pair:
    """Damaged bytes, or another header before the same numbers."""
    theirs = {torch_key(name): array for name, array in to_channels_first(NETWORK, ARRAYS).items()}
    good = [build_safetensors_bytes(NamedArrays(ARRAYS, DESCRIPTION)), build_safetensors_bytes(NamedArrays(theirs))]

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
    good = build_npz_bytes(NamedArrays(ARRAYS, DESCRIPTION))
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


def make_onnx_of_others(folder: Path) -> Pair:
    """Models with what is folded, their numbers in a file beside them, whose places and content are wrong, too."""
    model, rng = model_of(STEPS, shape=(1, 6, 6)), np.random.default_rng(0)
    data = b""
    for one in model.graph.initializer:
        if one.data_type == 1 and one.dims:
            numbers = np.abs(rng.standard_normal(tuple(one.dims))).astype(np.float32).tobytes()
            places = {"location": "case.data", "offset": str(len(data)), "length": str(len(numbers))}
            data += numbers
            one.ClearField("raw_data")
            one.data_location = 1
            for key, value in places.items():
                one.external_data.add(key=key, value=value)
    (folder / "case.data").write_bytes(data)
    good = model.SerializeToString()

    def generate(rng: Random) -> bytes:
        if rng.random() < 0.3:
            return damaged(rng, good)
        copy = ModelProto()
        copy.ParseFromString(good)
        for _ in range(rng.randint(0, 2)):
            other_part(rng, copy)
        if rng.random() < 0.4:
            one = rng.choice([one for one in copy.graph.initializer if one.external_data])
            place = rng.choice(one.external_data)
            place.value = rng.choice(("", "case", "/dev/zero", "..", "case.data", "-1", *map(str, EXTREMES)))
        return bytes(copy.SerializeToString())

    return generate, lambda path: imports(path, None)


def make_state_dict(folder: Path) -> Pair:
    """Arrays with batch normalisations, some left out, renamed or of other shapes; with a network and without."""
    theirs = {torch_key(name): array for name, array in to_channels_first(NETWORK, ARRAYS).items()}
    theirs |= {f"bn1.{kind}": np.ones(2, np.float32) for kind in ("weight", "bias", "running_mean", "running_var")}

    @np.errstate(all="ignore")
    def generate(rng: Random) -> bytes:
        arrays = dict(theirs)
        for _ in range(rng.randint(0, 2)):
            name = rng.choice(list(arrays))
            array = arrays.pop(name)
            match rng.randrange(4):
                case 0:
                    arrays[rng.choice(("x", "conv1", "fc1", "bn1")) + "." + name.rpartition(".")[2]] = array
                case 1:
                    arrays[name] = array.repeat(rng.choice((1, 2, 3)), rng.randrange(array.ndim))
                case 2:
                    arrays[name] = np.full_like(array, rng.choice((-1.0, 0.0, np.nan, np.inf)))
                case _:
                    arrays = {name: array.astype(rng.choice(("i8", "f2", "f8"))), **arrays}
        return build_npz_bytes(NamedArrays(arrays))

    def read_both(path: Path) -> None:
        with suppress(UserError):
            imports(path, None)
        imports(path, NETWORK)

    return generate, read_both


MODEL: Model = [
    *(keras.SHIFTED, keras.conv(3, 1, 2, False, padding="same"), keras.norm(2)),
    ("PReLU", {"shared_axes": [1, 2]}, {"alpha": np.full((1, 1, 2), 0.25, np.float32)}),
    keras.bare("Normalization", axis=[-1], mean=[0.5, 0.4], variance=[0.1, 0.2]),
    keras.bare("ZeroPadding2D", padding=[[0, 1], [0, 1]]),
    keras.bare("AveragePooling2D", pool_size=[2, 2], strides=[1, 1]),
    keras.bare("LeakyReLU", negative_slope=0.1),
    keras.bare("MaxPooling2D", pool_size=[3, 3], strides=[2, 2], padding="same"),
    *(keras.FLATTEN, keras.dense(18, 3, activation="softmax")),
]


def make_keras(folder: Path) -> Pair:
    """Damaged archives and HDF5 files, and whole ones with another configuration, or with damaged members."""
    configs = [form(MODEL, (6, 6, 1)) for form in (configuration, functional)]
    goods = [write(MODEL, config) for write in (keras_zip, keras_hdf5) for config in configs]

    def generate(rng: Random) -> bytes:
        if rng.random() < 0.3:
            return damaged(rng, rng.choice(goods))
        other = other_json(rng, rng.choice(configs))
        if rng.random() < 0.3:
            return keras_hdf5(MODEL, other[: 60 << 10].decode("utf-8", "replace").replace("\0", ""))
        members = keras_members(MODEL, {}) | {"config.json": other if rng.random() < 0.7 else json.dumps(configs[0])}
        chosen = rng.choice(list(members))
        content = members[chosen]
        if rng.random() < 0.3:
            members[chosen] = damaged(rng, content.encode() if isinstance(content, str) else content)
        return zipped(members)

    return generate, lambda path: imports(path, None)


TARGETS = (
    *((Target("safetensors", 1400, make_safetensors),) if find_spec("safetensors") else ()),  # of an extra
    Target("npz", 1400, make_npz),
    Target("onnx", 700, make_onnx),
    Target("onnx_of_others", 700, make_onnx_of_others),
    Target("state_dict", 700, make_state_dict),
    Target("keras", 700, make_keras),
)
