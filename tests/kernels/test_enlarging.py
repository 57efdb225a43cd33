"""Test networks that enlarge images, or read images enlarged before: equal bits, similar plans, and refused inputs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli import main
from app.kernels.plain_problems import ResizeProblem
from app.kernels.problems import ConvPairProblem, ConvProblem
from app.lab.bench.cases import network_items
from app.layers import Resize
from app.network.definitions import FA19, K7, LENET5, MINIDNN86, Network
from app.network.graph import Graph
from app.network.weights import save_weights
from app.planning.matching import Choices
from app.planning.plan import PIXELS, plan
from data_tools.idx import write_idx
from tests.support.networks_for_tests import random_graph, random_images
from tests.support.shell import Refuses

SIZES = {"fa19": 70, "k7": 72, "minidnn86": 86}
ENLARGING = pytest.mark.parametrize("network", [FA19, K7, MINIDNN86])


def resize_images(images: np.ndarray, size: int) -> np.ndarray:
    return Resize("resize", size).reference(images, {})


def graphs_for_both_sizes(network: Network) -> tuple[Graph, Graph]:
    """Return the network's graph for small images, which it enlarges, and that for images enlarged before."""
    small = random_graph(network)
    large = small.graph_for_shape(small.steps[0].out_shape)
    assert large is not None
    return small, large


@ENLARGING
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_small_and_enlarged_images_give_the_same_bits(network: Network, dtype: type) -> None:
    small, large = graphs_for_both_sizes(network)
    assert small.network.input_shape == (1, 28, 28) and small.graph_for_shape((1, 28, 28)) is small
    assert (
        small.graph_for_shape((1, 71, 71))
        is small.graph_for_shape((3, 28, 28))
        is large.graph_for_shape((1, 28, 28))
        is None
    )
    assert random_graph(LENET5).graph_for_shape((1, 70, 70)) is None
    assert large.network.input_shape == (1, SIZES[network.name], SIZES[network.name])
    assert [step.layer for step in large.steps] == list(large.network.layers) == list(network.layers[1:])
    images = random_images(network, 9)
    scores, labels = small.forward(images, dtype)
    again, same = large.forward(resize_images(images, SIZES[network.name]), dtype)
    assert scores.dtype == dtype and np.array_equal(scores, again) and np.array_equal(labels, same)


@ENLARGING
@pytest.mark.parametrize("precision", ["fp32x", "fp16"])
def test_a_fused_pair_that_enlarges_differs_only_by_its_resize(network: Network, precision: str) -> None:
    """Plans for small and for enlarged images have the same kernels and parameters."""
    small, large = (plan(graph, "sm_90a", Choices(precision)) for graph in graphs_for_both_sizes(network))
    assert PIXELS not in small.buffers and PIXELS not in large.buffers
    enlarging, plain = small.nodes[0].problem, large.nodes[0].problem
    assert isinstance(enlarging, ConvPairProblem) and enlarging.resize is not None
    assert replace(enlarging, resize=None) == plain
    assert enlarging.arguments()[0].per_image == 28 * 28 and plain.arguments()[0].per_image == SIZES[network.name] ** 2
    assert [node.problem for node in small.nodes[1:]] == [node.problem for node in large.nodes[1:]]
    assert [node.variant for node in small.nodes] == [node.variant for node in large.nodes]
    for one, other in zip(small.nodes, large.nodes, strict=True):
        np.testing.assert_equal(one.parameters, other.parameters)
        np.testing.assert_equal(one.scales, other.scales)


@ENLARGING
@pytest.mark.parametrize(("precision", "fuse"), [("fp32", True), ("fp16", False)])
def test_plans_differ_by_one_launch_and_fold_the_same_scale(network: Network, precision: str, fuse: bool) -> None:
    small, large = (plan(graph, "sm_90a", Choices(precision, fuse)) for graph in graphs_for_both_sizes(network))
    enlarge, *rest = small.nodes
    assert enlarge.name == "resize" and enlarge.writes == (PIXELS,) == (rest[0].reads,)
    assert small.buffers[PIXELS] == ("uint8", SIZES[network.name] ** 2) and PIXELS not in large.buffers
    assert [node.problem for node in rest] == [node.problem for node in large.nodes]
    first = rest[0].problem
    assert isinstance(first, ConvProblem) and (first.input_dtype, first.height) == ("uint8", SIZES[network.name])
    for one, other in zip(rest, large.nodes, strict=True):
        for a, b in zip(one.parameters, other.parameters, strict=True):
            assert (a is None and b is None) or np.array_equal(a, b)  # type: ignore[arg-type]
    filters = (graphs_for_both_sizes(network)[0].parameters["conv1"].transpose(2, 0, 1, 3) / 255).astype(np.float32)
    folded = rest[0].parameters[0]
    assert folded is not None
    np.testing.assert_allclose(
        folded.astype(np.float32), filters, rtol=1e-3 if precision == "fp16" else 1e-6, atol=1e-6
    )


def test_benchmark_has_a_separate_item_for_enlarging() -> None:
    items = {item.name: item for item in network_items(random_graph(FA19))}
    assert items["resize"].problems == {"uint8": ResizeProblem(1, 28, 28, 70)}
    pair = items["resize+conv1+tanh1+pool1+conv2"]
    assert [name for name in items if name.startswith("resize")] == ["resize", pair.name]
    assert {getattr(problem, "resize", None) for problem in pair.problems.values()} == {ResizeProblem(1, 28, 28, 70)}
    conv1 = items["conv1"].problems["float32"]
    assert isinstance(conv1, ConvProblem) and (conv1.input_dtype, conv1.height) == ("uint8", 70)


def test_the_benchmark_times_the_reference_on_bytes() -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.lab.bench.ladder import time_cpu_reference

    graph = random_graph(FA19)
    resize, enlarging = (item for item in network_items(graph) if item.name.startswith("resize"))
    for item, dtype in ((resize, "uint8"), (enlarging, "float16x2")):
        row = time_cpu_reference(item, graph, 4)
        assert row.dtype == dtype and row.ms is not None and row.ms > 0


# --- the application ------------------------------------------------------------------------------------------------


@pytest.fixture
def fa19_path(tmp_path: Path) -> Path:
    """Write random weights of fa19 to a file; return its path."""
    path = tmp_path / "fa19.h5"
    save_weights(path, random_graph(FA19).parameters, network=FA19)
    return path


def test_small_and_enlarged_files_are_classified_alike(
    fa19_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = random_images(FA19, 12)
    reports = []
    for name, pixels in (("small", images), ("large.gz", resize_images(images, 70))):
        write_idx(tmp_path / name, pixels[:, 0])
        options = ["--weights", str(fa19_path), "--data", str(tmp_path / name), "--labels", "none", "--device", "cpu"]
        assert main(options) == 0
        reports.append(capsys.readouterr().out)
    first, second = ([line for line in report.splitlines() if line.startswith("  first")] for report in reports)
    assert first == second != []
    assert "resize" in reports[0] and "resize" not in reports[1]


def test_other_image_sizes_are_a_one_line_error(fa19_path: Path, tmp_path: Path, refuses: Refuses) -> None:
    write_idx(tmp_path / "images", np.zeros((2, 71, 71), np.uint8))
    wrong = r"of shape \(1, 71, 71\) .*network fa19 reads \(1, 28, 28\) or \(1, 70, 70\): resize them"
    refuses(["--weights", fa19_path, "--data", tmp_path / "images", "--labels", "none", "--device", "cpu"], wrong)


def test_fractional_pixels_are_a_one_line_error(fa19_path: Path, tmp_path: Path, refuses: Refuses) -> None:
    h5py: Any = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "images.h5", "w") as file:
        file["x"] = np.random.default_rng(0).random((2, 28, 28, 1), np.float32)
    wrong = "contains fractions of pixel values, but network fa19 .*store its images as uint8"
    refuses(["--weights", fa19_path, "--data", tmp_path / "images.h5", "--labels", "none", "--device", "cpu"], wrong)


@pytest.mark.gpu
@ENLARGING
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_small_and_enlarged_images_give_the_same_bits_on_the_gpu(network: Network, precision: str) -> None:
    from tests.engine.test_gpu_engine import classify

    small, large = graphs_for_both_sizes(network)
    images = random_images(network, 33)
    labels, scores = classify(small, images, chunk=10, precision=precision)
    same, again = classify(large, resize_images(images, SIZES[network.name]), chunk=10, precision=precision)
    assert np.array_equal(labels, same) and np.array_equal(scores.view(np.uint32), again.view(np.uint32))
