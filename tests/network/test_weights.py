"""Test weights files: what is read, what is refused, and that nothing invalid is written."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from app.base.errors import UserError
from app.network import weights as module
from app.network.definitions import K7, LENET5
from app.network.weights import Weights, check_shapes, load_weights, round_to_storage, save_weights
from tests.support.hostile_hdf5 import write_hdf5
from tests.support.shell import user_error

RNG = np.random.default_rng(5)
SHAPES = {"conv1": (5, 5, 1, 32), "conv2": (5, 5, 32, 64), "fc1": (1024, 128), "fc2": (128, 10)}
ARRAYS = {name: RNG.normal(0, 0.1, shape).astype(np.float32) for name, shape in SHAPES.items()}
SMALL = {
    "conv1": RNG.normal(size=(2, 2, 1, 3)).astype(np.float32),
    "fc1": RNG.normal(size=(4, 3)).astype(np.float32),
    "fc1_bias": RNG.normal(size=3).astype(np.float32),
}


ABOUT: dict[str, Any] = {"network": K7, "classes": ("T-shirt/top", "Überzieher"), "input_scale": 1 / 255}
ABOUT |= {"recipe": "45 epochs, rate 5×10⁻³", "expected_correct": {100: 90, 10_000: 9_000}}


def _save_example(path: Path, arrays: dict[str, np.ndarray] = SMALL, **changes: object) -> Path:
    save_weights(path, arrays, **(ABOUT | changes))
    return path


def _loading_error(path: Path) -> str:
    message = user_error(lambda: load_weights(path))
    assert message.startswith(str(path))
    return message


def test_saved_weights_are_loaded(tmp_path: Path) -> None:
    path = _save_example(tmp_path / "w.h5")
    weights = load_weights(path)
    assert weights.arrays.keys() == SMALL.keys()
    for name, array in SMALL.items():
        np.testing.assert_array_equal(weights.arrays[name], array, strict=True)
    about = ABOUT | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "path": path}
    about |= {"network": "k7", "definition": K7}
    assert about.items() <= vars(weights).items()


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    first = _save_example(tmp_path / "1.h5", SMALL, expected_correct={1: 1, 2: 1})
    second = _save_example(tmp_path / "2.h5", dict(reversed(SMALL.items())), expected_correct={2: 1, 1: 1})
    assert first.read_bytes() == second.read_bytes()


def test_datasets_without_attributes_are_lenet5(tmp_path: Path) -> None:
    weights = load_weights(write_hdf5(tmp_path / "w.h5", dict(ARRAYS)))
    assert (weights.network, weights.input_scale, weights.expected_correct) == ("lenet5", None, {})
    assert (weights.classes, weights.recipe) == (None, None)
    check_shapes(weights, SHAPES)


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8"])
def test_other_floats_become_float32(dtype: str, tmp_path: Path) -> None:
    stored = SMALL["fc1"].astype(dtype)
    array = load_weights(write_hdf5(tmp_path / "w.h5", {"fc1": stored})).arrays["fc1"]
    np.testing.assert_array_equal(array, stored.astype(np.float32), strict=True)


@pytest.mark.parametrize("storage", ["float16", "float32"])
def test_storage_is_the_type_in_the_file(storage: str, tmp_path: Path) -> None:
    """Datasets have the type ``storage``, and loading rounds like round_to_storage. Saving again gives equal bytes."""
    path = _save_example(tmp_path / "w.h5", storage=storage)
    with h5py.File(path) as file:
        assert {dataset.dtype for dataset in file.values()} == {np.dtype(storage)}
    weights = load_weights(path)
    assert weights.storage == storage
    for name, array in round_to_storage(SMALL, storage).items():
        np.testing.assert_array_equal(weights.arrays[name], array, strict=True)
        assert np.array_equal(array, SMALL[name]) is (storage == "float32")
    again = _save_example(tmp_path / "again.h5", weights.arrays, storage=weights.storage)
    assert again.read_bytes() == path.read_bytes()


def _change_file(path: Path, change: Callable[[h5py.File], object]) -> Path:
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def _set_attribute(name: str, value: object) -> Callable[[h5py.File], object]:
    return lambda file: file.attrs.__setitem__(name, np.bytes_(value.encode()) if isinstance(value, str) else value)


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file["fc1"].write_direct(SMALL["fc1"] * np.float32(1 + 2e-7)),
        lambda file: file.move("fc1_bias", "conv1_bias"),
        lambda file: file.__delitem__("fc1_bias"),
        lambda file: file.__setitem__("fc2", np.ones((3, 3), "f4")),
        _set_attribute("input_scale", 1 / 256),
        lambda file: _set_attribute("definition", file.attrs["definition"].decode().replace("24", "23"))(file),
        _set_attribute("classes", '["Überzieher", "T-shirt/top"]'),
        _set_attribute("expected_correct", '{"100": 91}'),
        _set_attribute("network", "k8"),
        lambda file: file.attrs.pop("schema"),
        _set_attribute("recipe", "none"),
        _set_attribute("arrays_sha256", 5),
        lambda file: file.attrs.pop("arrays_sha256"),
    ],
)
def test_every_change_breaks_the_checksum(change: Callable[[h5py.File], object], tmp_path: Path) -> None:
    path = _save_example(tmp_path / "w.h5")
    assert load_weights(path).vouched
    assert "does not match its checksum; get a fresh copy, or, if it was" in _loading_error(_change_file(path, change))


def test_weights_without_a_checksum_are_read(tmp_path: Path) -> None:
    for attributes in ({}, {"schema": 1}):
        assert not load_weights(write_hdf5(tmp_path / "w.h5", dict(SMALL), **attributes)).vouched


def test_shipped_weights_are_vouched() -> None:
    weights = load_weights()
    assert weights.vouched and weights.stored_network() == LENET5


FC = np.ones((4, 3), np.float32)
BAD_DATASETS: dict[str, tuple[dict[str, object], str]] = {
    "none": ({}, "has no datasets"),
    "group": ({"layer/fc1": FC}, "has no datasets"),
    "name": ({"Fc 1\n": FC}, r"'Fc 1\n'"),
    "NaN": ({"fc1": np.array([[1, np.nan]], "f4")}, "fc1 contains 1 NaN"),
    "infinity": ({"fc1": np.array([[np.inf, -np.inf]], "f4")}, "fc1 contains 2 NaN or infinite"),
    "overflow": ({"fc1": np.array([[1e39]])}, "beyond the range of float32"),
    "integers": ({"fc1": np.ones((4, 3), "i4")}, "int32"),
    "strings": ({"fc1": ["a", "b"]}, "other than integers or floats"),
    "empty": ({"fc1": np.zeros((0, 3), "f4")}, "(0,3)"),
    "rank 3": ({"conv1": np.ones((2, 2, 2), "f4")}, "(2,2,2)"),
    "rank 1": ({"fc1": np.ones(3, "f4")}, "(3)"),
    "scalar": ({"fc1": np.float32(1)}, "()"),
    "bias of rank 2": ({"fc1": FC, "fc1_bias": FC}, "fc1_bias is (4,3)"),
    "bias alone": ({"fc1": FC, "fc2_bias": np.ones(3, "f4")}, "fc2_bias does not go with fc2"),
    "bias of another size": ({"fc1": FC, "fc1_bias": np.ones(4, "f4")}, "fc1_bias does not go with fc1"),
    "soft link": ({"fc1": FC, "fc2": h5py.SoftLink("/fc1")}, "soft or external link"),
}


@pytest.mark.parametrize("case", BAD_DATASETS)
def test_wrong_datasets_are_refused(case: str, tmp_path: Path) -> None:
    datasets, message = BAD_DATASETS[case]
    assert message in _loading_error(write_hdf5(tmp_path / "w.h5", datasets))


BAD_ATTRIBUTES: dict[str, list[object]] = {
    "schema": [0, 4, np.array([1, 1])],
    "network": ["no such\nname", 5],
    "definition": [5, "", "input = [1, 28, 28]\nlayers = 5"],
    "classes": ["T-shirt", "[]", '["a", 1]', '["a\\u001b[2J"]', "[" * 20_000],
    "input_scale": [0.0, -1.0, 1e308, 1e39, 5e-324, 1e-40, *(np.array([np.nan, np.inf, -np.inf])), "1/255"],
    "recipe": ["two\nlines"],
    "expected_correct": ["[100]", '{"100": 101}', '{"100": -1}', '{"100": true}', '{"0": 0}', '{"many": 1}'],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in BAD_ATTRIBUTES for value in BAD_ATTRIBUTES[name]]
)
def test_wrong_attributes_are_refused(name: str, value: object, tmp_path: Path) -> None:
    assert f"'{name}'" in _loading_error(write_hdf5(tmp_path / "w.h5", {"fc1": FC}, **{name: value}))


def test_the_total_size_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", sum(array.nbytes for array in SMALL.values()) - 1)
    with pytest.raises(UserError, match="fc1_bias' declares 12 bytes, more than the 11 allowed"):
        _save_example(tmp_path / "w.h5")


def test_check_shapes_names_every_fault() -> None:
    arrays = {"conv2": np.ones((3, 3, 32, 64), np.float32), "fc1": FC, "extra": FC}
    weights = Weights(arrays, "lenet5", Path("w.h5"))
    shapes = {"conv1": (5, 5, 1, 32), "conv2": (5, 5, 32, 64), "fc1": (4, 3)}
    assert user_error(lambda: check_shapes(weights, shapes)).startswith(
        "w.h5: conv1 is missing, network lenet5 needs (5,5,1,32); conv2 is (3,3,32,64), "
        "network lenet5 needs (5,5,32,64); extra is not part of network lenet5"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": replace(K7, name="No Name")}, "'network'"),
        ({"classes": ()}, "'classes'"),
        ({"expected_correct": {10: 11}}, "'expected_correct'"),
        ({"arrays": {"fc1": np.full((2, 2), np.nan, np.float32)}}, "fc1 contains 4 NaN"),
        ({"arrays": {"fc1": np.array([[1, 1e5]], np.float32)}, "storage": "float16"}, "fc1 contains 1 NaN or infinite"),
    ],
)
def test_invalid_weights_are_not_saved(changes: Any, message: str, tmp_path: Path) -> None:
    assert message in user_error(lambda: _save_example(tmp_path / "w.h5", **changes))
    assert list(tmp_path.iterdir()) == []
