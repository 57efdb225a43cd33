"""ONNX models that keep their numbers in a file beside them: read as if they were inside; a wrong one is one line."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.cli import main
from app.interchange.source import MAX_FILE_BYTES, Asked, read
from tests.support.foreign_files import SMALL, onnx_of_others
from tests.support.networks_for_tests import random_graph

onnx = pytest.importorskip("onnx")
GRAPH = random_graph(SMALL, bias=False)
DATA = "m.onnx.data"


def tensor(model: Any) -> Any:
    """The filters of the convolution."""
    return next(one for one in model.graph.initializer if one.name == "conv1.weight")


def point(one: Any, **entries: str) -> None:
    """Change entries of a tensor's place."""
    about = {entry.key: entry.value for entry in one.external_data} | entries
    del one.external_data[:]
    for key, value in about.items():
        one.external_data.add(key=key, value=value)


def saved(change: Callable[[Any], None] = lambda model: None) -> Path:
    """The model in m.onnx, its numbers in m.onnx.data, as PyTorch's exporter writes them, but for a change."""
    model = onnx_of_others(SMALL, GRAPH.parameters, 1 / 255)
    onnx.save_model(model, "m.onnx", save_as_external_data=True, location=DATA, size_threshold=0)
    model = onnx.load("m.onnx", load_external_data=False)
    assert tensor(model).data_location == 1
    change(model)
    Path("m.onnx").write_bytes(model.SerializeToString())
    return Path("m.onnx")


def test_numbers_beside_the_model_are_its_own() -> None:
    inside = onnx_of_others(SMALL, GRAPH.parameters, 1 / 255)
    Path("one.onnx").write_bytes(inside.SerializeToString())
    found, expected = (read(path, Asked(name="x"))[1] for path in (saved(), Path("one.onnx")))
    assert found.network == expected.network and found.origins == expected.origins
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)
    assert main(["import", "m.onnx", "--out", "m.h5"]) == 0


def test_length_and_offset_may_be_missing() -> None:
    """The whole file."""

    def alone(model: Any) -> None:
        one = tensor(model)
        begin = int(next(entry.value for entry in one.external_data if entry.key == "offset"))
        content = Path(DATA).read_bytes()[begin : begin + 4 * int(np.prod(one.dims))]
        Path("alone").write_bytes(content)
        del one.external_data[:]
        one.external_data.add(key="location", value="alone")

    np.testing.assert_array_equal(
        read(saved(alone), Asked())[1].arrays["conv1"], GRAPH.parameters["conv1"].transpose(3, 2, 0, 1)
    )


def linked(model: Any) -> None:
    Path(DATA).rename("elsewhere")
    Path(DATA).symlink_to("elsewhere")


def large(model: Any) -> None:
    os.truncate(DATA, MAX_FILE_BYTES + 1)


def directory(model: Any) -> None:
    Path(DATA).unlink()
    Path(DATA).mkdir()


def pipe(model: Any) -> None:
    Path(DATA).unlink()
    os.mkfifo(DATA)


def overlapping(model: Any) -> None:
    for one in model.graph.initializer:
        point(one, offset="0")


def at(**entries: str) -> Callable[[Any], None]:
    return lambda model: point(tensor(model), **entries)


BAD: dict[str, tuple[Callable[[Any], None], str]] = {
    "above": (at(location="../m.onnx.data"), "no file beside it; save the model with its data in one file"),
    "absolute": (at(location="/etc/passwd"), "'/etc/passwd', which is no file beside it"),
    "a folder in it": (at(location="a/b"), "no file beside it"),
    "backslash": (at(location="..\\b"), "no file beside it"),
    "no name": (at(location=""), "no file beside it"),
    "the folder": (at(location="."), "no file beside it"),
    "unprintable": (at(location="a\0b"), "no file beside it"),
    "itself": (at(location="m.onnx"), "keeps 'conv1.weight' in itself"),
    "missing": (at(location="none"), "keeps 'conv1.weight' in 'none', which is not beside it; put both files in one"),
    "a link": (linked, "is a link; put the file itself there"),
    "a directory": (directory, "is a directory"),
    "a pipe": (pipe, "is not a regular file"),
    "beyond its end": (at(offset="100000"), "beyond the end of 'm.onnx.data', which has [0-9,]+ bytes"),
    "10 GB": (at(length="10000000000"), "beyond the end"),
    "a large file": (large, "more than the 100,66[0-9],[0-9]{3} that are read"),
    "negative": (at(offset="-4"), "keeps 'conv1.weight' at '-4', which is no number of bytes"),
    "no number": (at(length="1e3"), "no number of bytes"),
    "overlapping": (overlapping, "where 'm.onnx.data' has another; export it again"),
    "too short": (at(length="8"), "has damaged data in 'conv1.weight'"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_wrong_place_is_one_line(fault: str, place: Path) -> None:
    change, message = BAD[fault]
    with pytest.raises(UserError, match=message) as error:
        read(saved(change), Asked())
    assert "\n" not in str(error.value)
    if fault != "a large file":
        assert main(["import", "m.onnx", "--out", "m.h5"]) == 2 and not (place / "m.h5").exists()
