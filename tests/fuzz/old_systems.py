"""Files of other systems, flat dumps, lists of arrays and symbols: damaged as bytes, and symbols as JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from app.interchange.layout import ConvertedArray
from app.interchange.source import ImportOptions, Source
from app.network.network import check_layers
from app.tools.import_ import read_foreign_file
from tests.fuzz.harness import Pair, Target, linked
from tests.fuzz.mutate import damaged, other_json
from tests.support.foreign_files import channels_first, flat_dump
from tests.support.mxnet_files import VERSIONS, course_network, mxnet_names, params_file, symbol

NETWORK = course_network(3, (2, 3), 4, 12)
ARRAYS = channels_first(NETWORK, biases=frozenset({"fc1", "fc2"}))
SYMBOL = symbol(NETWORK, ARRAYS)


def check(source: Source, found: list[ConvertedArray]) -> None:
    """What is read is a network within limits and all of its arrays, finite and in the weights file's layout."""
    shape = source.network.input_shape
    check_layers(shape, source.network.layers)
    wanted: dict[str, tuple[int, ...]] = {}
    for layer in source.network.layers:
        wanted |= layer.parameter_shapes(shape)
        shape = layer.output_shape(shape)
    for one in found:
        assert one.array.dtype == np.float32 and np.isfinite(one.array).all() and one.array.flags.c_contiguous
        assert one.array.shape == wanted[one.name]
    assert {name for name in wanted if not name.endswith("_bias")} <= {one.name for one in found}


def reader(place: Path, asked: ImportOptions) -> Callable[[Path], None]:
    """Read the file at a place whose name has the format's ending."""

    def read(path: Path) -> None:
        linked(place, path)
        check(*read_foreign_file(place, asked)[1:])

    return read


def make_dump(folder: Path) -> Pair:
    """mini-dnn's flat dumps."""
    good = flat_dump(NETWORK, ARRAYS)
    return lambda rng: damaged(rng, good), reader(folder / "links" / "case.bin", ImportOptions(NETWORK))


def make_params(folder: Path) -> Pair:
    """MXNet's lists of arrays, of both versions."""
    goods = [params_file(mxnet_names(ARRAYS), version) for version in VERSIONS]
    return lambda rng: damaged(rng, rng.choice(goods)), reader(folder / "links" / "case.params", ImportOptions())


def make_symbol(folder: Path) -> Pair:
    """MXNet's symbol files, beside a good list of arrays."""
    arrays = folder / "good.params"
    arrays.write_bytes(params_file(mxnet_names(ARRAYS)))

    def generate(rng: Random) -> bytes:
        if rng.random() < 0.5:
            return other_json(rng, SYMBOL)
        text = json.dumps(SYMBOL)  # another word in the place of a setting or an operator
        words = ("(3, 3)", "New", "Pooling", "max", "tanh", "conv1_weight", "fc1", "False", "2", "4", "[0, 0, 0]")
        others = (*words, "(0, 0)", "(99999, 99999)", "(1, 2)", "()", "0", "-1", "1000000", "Flatten", "True", "full")
        return text.replace(rng.choice(words), rng.choice(others), rng.choice((1, 1, 2, -1))).encode()

    return generate, lambda path: check(*read_foreign_file(arrays, ImportOptions(symbol=path))[1:])


TARGETS = (
    Target("flat-dump", 1000, make_dump),
    Target("mxnet", 1400, make_params),
    Target("mxnet-symbol", 1000, make_symbol),
)
