"""Test colour images: either position of the channels, ambiguous shapes, and resized files."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from app.base.errors import UserError
from app.cli import main as run_main
from app.layers import Resize
from app.network.toml import network_toml
from app.network.weights import save_weights
from data_tools.__main__ import main
from data_tools.dataset import load_files, read_images, to_channels_first
from data_tools.idx import write_idx
from tests.layers.test_pixel_scale import COLOUR
from tests.support.hostile_hdf5 import write_hdf5
from tests.support.networks_for_tests import random_graph, random_images
from tests.support.shell import Refuses, user_error

PLANES = np.random.default_rng(3).integers(0, 256, (7, 3, 5, 6), np.uint8)  # N, C, H, W
PIXELS = np.ascontiguousarray(PLANES.transpose(0, 2, 3, 1))
LAYOUTS = pytest.mark.parametrize("stored", [PLANES, PIXELS], ids=["N C H W", "N H W C"])


@LAYOUTS
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", ["idx", "idx.gz", "hdf5", "floats"])
def test_either_layout_gives_the_same_images(kind: str, channels: int, stored: np.ndarray, tmp_path: Path) -> None:
    """The images are in memory from ``allocate``, with the channels as planes."""
    stored = stored[:, :channels] if stored.shape[1] == 3 else stored[..., :channels]
    path, memory = tmp_path / kind, []

    def allocate(nbytes: int) -> np.ndarray:
        memory.append(np.empty(nbytes, np.uint8))
        return memory[-1]

    if kind.startswith("idx"):
        write_idx(path, stored)
    else:
        write_hdf5(path, {"x": stored / np.float32(255) if kind == "floats" else stored})
    images = load_files(path, None, allocate).images
    np.testing.assert_array_equal(images, PLANES[:, :channels])
    assert images.dtype == np.uint8 and images.flags.c_contiguous and np.shares_memory(images, memory[-1])


@pytest.mark.parametrize("shape", [(2, 3, 9, 3), (2, 1, 9, 1), (2, 3, 9, 1), (2, 1, 9, 3), (2, 3, 3, 3)])
def test_ambiguous_shapes_give_a_one_line_error(shape: tuple[int, ...], tmp_path: Path) -> None:
    wrong = "its second dimension or its last may be the channels: store images whose height and width are not 1 or 3"
    write_idx(tmp_path / "idx", np.zeros(shape, np.uint8))
    write_hdf5(tmp_path / "hdf5", {"x": np.zeros(shape, np.uint8)})
    for name, what in (("idx", ""), ("hdf5", "x in ")):
        error = user_error(partial(load_files, tmp_path / name, None))
        assert error == f"{what}{tmp_path / name} has shape {shape}; {wrong}"


def test_one_other_side_of_3_is_unambiguous() -> None:
    assert to_channels_first(np.empty((2, 3, 5, 4)), "x").shape == (2, 3, 5, 4)
    assert to_channels_first(np.empty((2, 5, 3, 1)), "x").shape == (2, 1, 5, 3)


@pytest.mark.parametrize("shape", [(2, 9, 9, 2), (2, 4, 9, 9), (0, 3, 9, 9), (9, 9), (2, 3, 9, 9, 1)])
def test_other_shapes_give_a_one_line_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        UserError, match=r"x has shape .*; it must be \(N, H, W, C\) or \(N, C, H, W\) with 1 or 3 chan"
    ):
        to_channels_first(np.empty(shape), "x")


@LAYOUTS
@pytest.mark.parametrize("rule", ["edge", "course"])
def test_resized_colour_files_have_channels_first(rule: str, stored: np.ndarray, tmp_path: Path) -> None:
    write_idx(tmp_path / "small", stored)
    assert (
        main(["resize", "--size", "8", "--rule", rule, *(str(tmp_path / name) for name in ("small", "large.gz"))]) == 0
    )
    found = read_images(tmp_path / "large.gz")
    np.testing.assert_array_equal(found, Resize("resize", 8, rule).reference(PLANES, {}))


def test_resize_refuses_sizes_that_readers_cannot_tell(tmp_path: Path, refuses: Refuses) -> None:
    write_idx(tmp_path / "small", PLANES)
    for size in (1, 3):
        arguments = ["resize", "--size", size, tmp_path / "small", tmp_path / "large"]
        refuses(arguments, f"--size {size}: no reader could tell the rows .*; choose another", main)
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_network_of_three_channels_classifies_either_layout(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The network is the user's, and enlarges images by the rule ``course``."""
    graph, reports = random_graph(COLOUR), []
    (tmp_path / "colour.toml").write_text(network_toml(COLOUR))
    save_weights(tmp_path / "weights.h5", graph.parameters, network=COLOUR)
    images = random_images(COLOUR, 40)
    for name, stored in (("planes", images), ("pixels", images.transpose(0, 2, 3, 1))):
        write_idx(tmp_path / name, stored)
        options = ["--network", tmp_path / "colour.toml", "--weights", tmp_path / "weights.h5", "--labels", "none"]
        options += ["--data", tmp_path / name]
        assert run_main([*map(str, options), "--device", device]) == 0
        reports.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("  first")])
    assert reports[0] == reports[1] != []
