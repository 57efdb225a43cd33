"""Test lenet5 by kernels of two layers on a GPU: equal bits for any chunks, right labels, early starts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
from app.base.precision import BY_NAME
from app.cuda import launch_attributes
from app.cuda.device import describe_gpu
from app.cuda.memory import DeviceMemoryError, pinned_copy
from app.engine import buffers
from app.engine.buffers import DIRECT, chunk_slices
from app.engine.gpu import GpuEngine
from app.engine.interface import Outputs
from app.kernels.problems import PairProblem
from app.network.definitions import LENET5
from app.network.graph import Graph, build_graph
from app.network.reference import compute_reference
from app.network.weights import load_weights
from app.planning.matching import Choices
from app.planning.plan import plan
from tests.engine.test_gpu_engine import ALL_GRAPHS, GRAPHS, classify, make_engine
from tests.support.kernel_cases import architecture
from tests.support.kernel_device import bits, cases_of, compile_all
from tests.support.networks_for_tests import check_labels, random_images, score_scale

pytestmark = pytest.mark.gpu
BOTH = pytest.mark.parametrize("precision", ["fp16", "fp32x"])
# Tolerance of the logits, as a share of the scores' magnitude.
TOLERANCE = {"fp32x": 1e-5, "fp16": 0.05}


@pytest.fixture(scope="module", autouse=True)
def compile_kernels() -> Iterator[None]:
    """Compile all kernels of this file in parallel, if the GPU has kernels that compute two layers."""
    plans = [
        plan(graph(), architecture(), Choices(p))
        for graph in GRAPHS.values()
        for p in TOLERANCE
        if _is_paired(graph(), p)
    ]
    compile_all(cases_of(plans))
    yield


def _is_paired(graph: Graph, precision: str) -> bool:
    """Return whether kernels that compute two layers serve the whole network."""
    if architecture() == "sm_75":
        return False
    return all(isinstance(node.problem, PairProblem) for node in plan(graph, architecture(), Choices(precision)).nodes)


def paired_graph(weights: str, precision: str) -> Graph:
    """Return the graph of this name; skip the test on GPUs without kernels that compute two layers."""
    graph = GRAPHS[weights]()
    if not _is_paired(graph, precision):
        pytest.skip(f"{architecture()} has no kernels that take two layers at once")
    return graph


@BOTH
@ALL_GRAPHS
def test_bits_do_not_depend_on_chunks_and_streams(weights: str, precision: str) -> None:
    graph = paired_graph(weights, precision)
    images = random_images(LENET5, 999)
    labels, logits = classify(graph, images, chunk=999, streams=1, precision=precision)
    assert np.isfinite(logits).all() and len(set(labels)) > 1
    np.testing.assert_array_equal(labels, logits.argmax(axis=1))
    settings: list[dict[str, Any]] = [
        {"chunk": chunk, "streams": streams, "pinned": pinned}
        for chunk, streams in ((7, 4), (31, 3), (100, 2), (333, 1), (998, 2), (5000, 4))
        for pinned in (True, False)
    ]
    for options in settings:
        other_labels, other_logits = classify(graph, images, precision=precision, **options)
        np.testing.assert_array_equal(bits(other_logits), bits(logits), err_msg=str(options))
        np.testing.assert_array_equal(other_labels, labels, err_msg=str(options))
    for count in (1, 2, 7, 31):
        few_labels, few_logits = classify(graph, images[:count], chunk=10, precision=precision)
        np.testing.assert_array_equal(bits(few_logits), bits(logits[:count]))
        np.testing.assert_array_equal(few_labels, labels[:count])


@BOTH
@pytest.mark.parametrize("why", ["nothing", "labels at an odd address", "no memory", "asked for"])
def test_direct_reads_and_chunks_give_equal_labels(why: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only direct reads need buffers for the whole batch. why: what keeps the first kernel from reading directly."""
    graph = paired_graph("shipped", precision)
    images = pinned_copy(random_images(LENET5, 1500))
    expected, _ = classify(graph, images, chunk=1500, precision=precision)
    with make_engine(graph, chunk=300, precision=precision, always_in_chunks=why == "asked for") as running:
        if not running.plan.nodes[0].variant.reads_host:
            pytest.skip(f"{architecture()}: no kernel reads the host's memory")
        held = running.device_bytes
        outputs = running.allocate_outputs(1501)
        if why.startswith("labels"):
            outputs = Outputs(outputs.labels[1:])
        if why == "no memory":

            def raise_out_of_memory(*_: Any) -> None:
                raise DeviceMemoryError

            monkeypatch.setattr(buffers, "device_array", raise_out_of_memory)
        for _ in range(3):
            outputs.labels.fill(255)
            running.run(images, outputs)
            np.testing.assert_array_equal(outputs.labels[:1500], expected)
        assert running.replays_graph_for(images, outputs)
        assert (running.direct is not None) == (why == "nothing") == (running.device_bytes > held + 1500 * 1024)


@BOTH
@ALL_GRAPHS
@pytest.mark.parametrize("value", [None, 0, 255])
def test_results_equal_the_float64_reference(weights: str, precision: str, value: int | None) -> None:
    """Labels may differ in near-ties. value: of all pixels; None for random pixels."""
    graph = paired_graph(weights, precision)
    images = random_images(LENET5, 999) if value is None else np.full((31, *LENET5.input_shape), value, np.uint8)
    labels, logits = classify(graph, images, chunk=200, precision=precision)
    expected = graph.reference(images)
    scale = score_scale(graph, expected)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE[precision] * max(scale, 1e-30))
    np.testing.assert_array_equal(labels, logits.argmax(axis=1))
    check_labels(labels, compute_reference(graph, images), BY_NAME[precision].dtype)


@pytest.mark.parametrize("streams", [1, 3])
def test_kernels_start_early_only_without_other_streams(streams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that wait for the previous kernel would keep out other streams' blocks; a graph has only one stream."""
    if describe_gpu()["architecture"] != "sm_90a" or not launch_attributes.supports_dependent_launch():
        pytest.skip("dependent launches need sm_90 and a driver of CUDA 12.3")
    early: list[bool] = []
    launched = launch_attributes.launch_kernel_ex

    def record_launch(config: Any, *others: Any) -> None:
        asked = config._obj.attributes[: config._obj.attribute_count]
        early.append(launch_attributes.PROGRAMMATIC in {attribute.number for attribute in asked})
        launched(config, *others)

    monkeypatch.setattr(launch_attributes, "launch_kernel_ex", record_launch)
    images = pinned_copy(random_images(LENET5, 32))
    in_chunks = [streams == 1] * len(list(chunk_slices(32, 8)))
    execution = plan(build_graph(LENET5, load_weights()), "sm_90a", Choices("fp16"))
    with GpuEngine(execution, chunk=8, streams=streams) as running:
        outputs = running.allocate_outputs(len(images))
        running.run(images, outputs)
        assert early == in_chunks
        running.run(images, outputs)  # the second run of the same arrays captures a graph
        assert running.direct is not None and running.direct.how == DIRECT
        assert early == [*in_chunks, *in_chunks, True]
