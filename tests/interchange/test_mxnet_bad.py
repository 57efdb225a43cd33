"""Test MXNet's files that are broken, or of other networks or types: each gives a one-line error, and no file."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli import main
from app.network.weights import load_weights
from tests.support.foreign_files import channels_first
from tests.support.mxnet_files import VERSIONS, course_network, mxnet_names, params_file, record, symbol
from tests.support.shell import Refuses

NETWORK = course_network(3, (2, 3), 6, 12)
ARRAYS = channels_first(NETWORK, biases=frozenset({"fc1", "fc2"}))
NAMED = mxnet_names(ARRAYS)
GOOD = params_file(NAMED)
SYMBOL = symbol(NETWORK, ARRAYS)
ONE = np.ones((2, 3), np.float32)
AT = 24  # position of the first record
SHAPE = AT + 12  # position of its shape


@pytest.fixture
def place(place: Path) -> Path:
    (place / "old.params").write_bytes(GOOD)
    (place / "symbol.json").write_text(json.dumps(SYMBOL))
    return place


def patch(at: int, value: bytes) -> bytes:
    return GOOD[:at] + value + GOOD[at + len(value) :]


def with_one(array: np.ndarray, name: str = "arg:conv1_weight") -> bytes:
    return params_file({**NAMED, name: array})


def array_with_nan() -> np.ndarray:
    array = ARRAYS["conv1"].copy()
    array[0, 0, 0, 0] = np.nan
    return array


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "ends within its head: 0 of 8 bytes"),
    "magic": (patch(0, b"\x13"), r"does not begin as a list of MXNet's \(0x112, 0\)"),
    "big-endian": (patch(0, struct.pack(">Q", 0x112)), "is a big-endian list"),
    "no arrays": (patch(16, struct.pack("<Q", 0)), "declares 0 arrays"),
    "2^31 arrays": (patch(16, struct.pack("<Q", 2**31 - 1)), "declares 2,147,483,647 arrays, but 1,... bytes follow"),
    "version": (patch(AT, struct.pack("<I", 4)), "array 1 of 6 in a record of version 0x4"),
    "sparse": (patch(AT + 4, struct.pack("<i", 1)), r"stores array 1 of 6 sparsely \(row_sparse\)"),
    "storage": (patch(AT + 4, struct.pack("<i", -1)), r"sparsely \(of type -1\)"),
    "no dimension": (patch(AT + 8, struct.pack("<I", 0)), "array 1 of 6 with 0 dimensions"),
    "dimensions": (patch(AT + 8, struct.pack("<I", 2**31 - 1)), "array 1 of 6 with 2,147,483,647 dimensions"),
    "negative": (patch(SHAPE, struct.pack("<q", -2)), r"array 1 of 6 of shape \(-2, 1, 3, 3\)"),
    "10^12": (patch(SHAPE, struct.pack("<q", 10**12)), "ends within array 1 of 6, 9,000,000,000,000 numbers: 1,... of"),
    "2^63": (patch(SHAPE, struct.pack("<4q", *[2**62] * 4)), "ends within array 1 of 6"),
    "type": (patch(SHAPE + 40, struct.pack("<i", 12)), "array 1 of 6 in numbers of type 12"),
    "truncated": (GOOD[:-1], "ends within name 6 of 6: 11 of 12 bytes are left"),
    "cut short": (GOOD[:200], "ends within array 2 of 6"),
    "longer": (GOOD + b"\0\0", "has 2 bytes after its last name"),
    "fewer names": (GOOD.replace(struct.pack("<2Q", 6, 16), struct.pack("<2Q", 5, 16)), "has 6 arrays but 5 names"),
    "doubled": (GOOD.replace(b"arg:conv2_weight", b"arg:conv1_weight"), "names two arrays 'arg:conv1_weight'"),
    "not text": (GOOD.replace(b"arg:conv2_weight", b"arg:conv2_" + b"\xff" * 6), "name 2 of 6 that is not text"),
    "a line": (GOOD.replace(b"arg:conv2_weight", b"arg:conv2\nweight"), "name 2 of 6 with unprintable"),
    "long name": (GOOD.replace(struct.pack("<2Q", 6, 16), struct.pack("<2Q", 6, 2**40)), "name 1 of 6 of 1,099,511,"),
    "another name": (GOOD.replace(b"arg:conv2_weight", b"arg:conv9_weight"), "has no array 'conv2_weight'"),
    "superfluous": (with_one(ONE, "arg:fc9_weight"), "has an array 'fc9_weight', which its network has no use for"),
    "same prefix": (with_one(ONE, "conv1_weight"), "names two arrays 'conv1_weight'"),
    "nan": (with_one(array_with_nan()), "conv1 contains 1 NaN"),
    "int32": (with_one(np.ones((2, 1, 3, 3), np.int32)), "'conv1_weight' is stored as int32; store it as float32"),
    "beyond": (with_one(np.full((2, 1, 3, 3), 1e300)), "'conv1_weight' has values beyond the range of float32"),
    "floats": (params_file({name: array.byteswap() for name, array in NAMED.items()}), "has big-endian floats"),
    "shape": (with_one(np.ones((2, 1, 5, 5), "f4")), r"conv1 is \(2, 1, 5, 5\), network old needs \(2, 1, 3, 3\)"),
    "rank": (with_one(ONE), "'conv1_weight' with 2 dimensions, not those of a conv2d"),
    "huge": (with_one(np.full((2, 1, 3, 3), 3e38, np.float32)), "beyond float32's range"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_params_file_gives_a_one_line_error(fault: str, place: Path, refuses: Refuses) -> None:
    content, wrong = BAD[fault]
    assert content != GOOD
    (place / "old.params").write_bytes(content)
    refuses("import old.params --symbol symbol.json --out new.h5", wrong)
    assert not (place / "new.h5").exists()


def change_node(at: int, **changes: Any) -> dict[str, Any]:
    nodes = [{**node, **changes} if index == at else node for index, node in enumerate(SYMBOL["nodes"])]
    return {**SYMBOL, "nodes": nodes}


def set_value(operator: str, **changes: str) -> dict[str, Any]:
    at = next(at for at, node in enumerate(SYMBOL["nodes"]) if node["op"] == operator)
    return change_node(at, attrs=SYMBOL["nodes"][at]["attrs"] | changes)


CONV, POOL, FC, LAST = 2, 4, 9, len(SYMBOL["nodes"]) - 1
BAD_SYMBOLS: dict[str, tuple[Any, str]] = {
    "a list": ([1, 2], "is not an object"),
    "no nodes": ({"heads": [[0, 0]]}, "nodes missing"),
    "unknown": (change_node(CONV, op="BatchNorm"), "has operators that import does not know: 'BatchNorm'"),
    "two unknown": (
        {**SYMBOL, "nodes": [*SYMBOL["nodes"], *({"op": op, "name": op, "inputs": []} for op in ("Concat", "LRN"))]},
        "does not know: 'Concat', 'LRN'",
    ),
    "a cycle": (change_node(CONV, inputs=[[LAST, 0, 0], [1, 0, 0]]), "node 'conv1' does not come after its inputs"),
    "beyond": ({**SYMBOL, "heads": [[999, 0, 0]]}, "has no output node"),
    "outputs": ({**SYMBOL, "heads": [[LAST, 0], [2, 0]]}, "has 2 outputs"),
    "a branch": ({**SYMBOL, "heads": [[POOL, 0]]}, "layers beside the row"),
    "two inputs": (change_node(POOL, inputs=[[3, 0, 0], [CONV, 0, 0]]), "node 'pool1' has two layers as inputs"),
    "no layer": ({"nodes": SYMBOL["nodes"][:1]}, "has no layers"),
    "a word": (set_value("New", num_filter="six"), "num_filter 'six' is not a whole number"),
    "maps": (set_value("New", num_filter=str(2**31 - 1)), "num_filter '2147483647' is not a whole number from 1 to"),
    "kernel": (set_value("New", kernel="(5, 3)"), r"kernel '\(5, 3\)' is not two equal numbers"),
    "one axis": (set_value("New", kernel="(5,)"), r"kernel '\(5,\)' is not two equal numbers"),
    "groups": (set_value("New", num_group="2"), "num_group '2': only 1 is computed here"),
    "dilate": (set_value("New", dilate="(2, 2)"), r"dilate '\(2, 2\)': only \(1, 1\)"),
    "a bias": (set_value("New", no_bias="False"), "has 1 arrays as inputs, but needs weights and a bias"),
    "no bias": (set_value("FullyConnected", no_bias="True"), "has 2 arrays as inputs, but needs weights alone"),
    "act": (set_value("Activation", act_type="softrelu"), "act_type 'softrelu' is none of relu, tanh, sigmoid"),
    "pool pad": (set_value("Pooling", pad="(1, 1)"), r"pad '\(1, 1\)': only \(0, 0\)"),
    "pool": (set_value("Pooling", pool_type="sum"), "'sum' pooling"),
    "global": (set_value("Pooling", global_pool="True"), "global_pool 'True'"),
    "settings": (change_node(CONV, attrs={"kernel": 5}), "is not one line"),
    "units": (set_value("FullyConnected", num_hidden="7"), r"fc1 is \(6, \d+\), network old needs \(7, "),
    "too many": ({"nodes": SYMBOL["nodes"] * 200}, "nodes, more than the 1,000"),
}


@pytest.mark.parametrize("fault", BAD_SYMBOLS)
def test_a_bad_symbol_gives_a_one_line_error(fault: str, place: Path, refuses: Refuses) -> None:
    content, wrong = BAD_SYMBOLS[fault]
    (place / "symbol.json").write_text(json.dumps(content))
    refuses("import old.params --symbol symbol.json --out new.h5", wrong)
    assert not (place / "new.h5").exists()


def test_arrays_without_their_network_are_refused(place: Path, refuses: Refuses) -> None:
    refuses("import old.params --symbol missing.json --out new.h5", "missing.json does not exist")
    refuses("import old.params --network mlp --out new.h5", "has an array 'conv1_weight', which its network has no")
    three = {name: array for name, array in NAMED.items() if "fc2" not in name}
    (place / "old.params").write_bytes(params_file(three))
    refuses("import old.params --out new.h5", "is no network of two convolutions and two fully connected layers")


def test_the_size_must_fit(place: Path, refuses: Refuses) -> None:
    refuses("import old.params --symbol symbol.json --size 20 --out new.h5", "--size 20 gives its first .* 147")
    refuses("import old.params --symbol symbol.json --size 3 --out new.h5", "--size 3 is too small")
    refuses("import old.params --network k7 --size 12 --out new.h5", "leave --size out")
    (place / "old.params").write_bytes(with_one(np.ones((6, 5), np.float32), "arg:fc1_weight"))
    refuses("import old.params --symbol symbol.json --out new.h5", "images of size none up to 1,024 give; give --size")


@pytest.mark.parametrize(("dtype", "word"), [("float16", "widened"), ("float64", "rounded")])
def test_other_floats_are_converted(dtype: str, word: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "old.params").write_bytes(params_file({name: array.astype(dtype) for name, array in NAMED.items()}))
    assert main(["import", "old.params", "--symbol", "symbol.json", "--out", "new.h5"]) == 0
    assert word in capsys.readouterr().out
    found = load_weights(Path("new.h5")).arrays["fc2"]
    np.testing.assert_array_equal(found, ARRAYS["fc2"].astype(dtype).astype(np.float32).T)


def test_auxiliary_arrays_are_left_out_with_a_note(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "old.params").write_bytes(with_one(ONE, "aux:bn_moving_mean"))
    assert main(["import", "old.params", "--symbol", "symbol.json", "--out", "new.h5"]) == 0
    assert "'aux:bn_moving_mean' is left out" in " ".join(capsys.readouterr().out.split())


def test_both_record_versions_contain_the_same_numbers() -> None:
    old, new = (record(ONE, version) for version in VERSIONS)
    assert new[8:] == old[4:] and len(new) == len(old) + 4
