"""Test the host's side of the resident (persistent) kernel with a thread in place of the kernel; compile the kernel."""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
from app.base.errors import UserError
from app.cuda import device as devices
from app.cuda.compiler import compile_kernel
from app.engine import resident
from app.engine.classifier import Classifier, card_engines
from app.engine.gpu import GpuEngine
from app.engine.resident import MOST, ResidentKernel, compile_time_constants
from app.network.definitions import LENET5, MLP
from app.network.graph import Graph
from app.network.weights import save_weights
from app.planning.matching import Choices
from app.planning.plan import plan
from tests.support.fake_card import Module, fake_card
from tests.support.networks_for_tests import random_graph, random_images, rounded
from tests.support.sparsity import with_sparse_conv2

CLASSES = 10


class KernelThread:
    """A thread that answers requests like the kernel. idle: seconds until it ends. launches: number of its starts."""

    def __init__(self, host: ResidentKernel, idle: float = 5.0) -> None:
        self._host, self.idle, self.launches, self._threads = host, idle, 0, list[Thread]()
        host._kernel = self.launch

    def launch(self, _stream: int, _blocks: int) -> None:
        self.launches += 1
        start = self._host._launch.value, self._host._first_number.value
        self._threads.append(Thread(target=self._run, args=start, daemon=True))
        self._threads[-1].start()

    def _run(self, launch: int, number: int) -> None:
        until = monotonic() + self.idle
        while monotonic() < until:
            flags = self._host._requests[0, :, 1].copy()
            if (flags >> 4 != number).any() or (flags != flags[0]).any():
                continue
            count = int(flags[0]) & 15
            if not count:
                break
            labels, logits = expected_results(self._host._requests[:count, :, 0].copy().view(np.uint8))
            words = np.concatenate([logits.view(np.uint32), labels[:, None].astype(np.uint32)], axis=1)
            self._host._answers[:count, :, 0] = words
            self._host._answers[:count, :, 1] = flags[0]
            number, until = number + 1, monotonic() + self.idle
        self._host._ended[0] = launch

    def join(self) -> None:
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


def expected_results(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return labels (N,) uint8 and logits (N, CLASSES) float32 that depend on every pixel."""
    pixels = images.reshape(len(images), -1).astype(np.int64)
    sums = (pixels * np.arange(1, pixels.shape[1] + 1)).sum(axis=1)
    return (sums % CLASSES).astype(np.uint8), (sums[:, None] + np.arange(CLASSES)).astype(np.float32)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[ResidentKernel]:
    graph = rounded(random_graph(LENET5, bias=False))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # both threads poll, perhaps on one core
    with fake_card() as card:
        monkeypatch.setattr(resident, "compile_kernel", lambda *_: b"")
        monkeypatch.setattr(resident, "load_cubin", lambda _: Module(card))
        with GpuEngine(plan(graph, "sm_90a", Choices(precision="fp16"))) as engine:
            yield ResidentKernel(engine.loaded)
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("precision", ["fp16", "fp32x"])
def test_a_resident_classifier_is_dense(precision: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A resident classifier runs dense kernels also for sparse weights, because sparse kernels round differently."""

    class Engines:
        device = "cuda"

        def __init__(self, choices: Choices, _: int | None) -> None:
            self.choices = choices

        def resident_kernel(self, graph: Graph) -> None:
            resident.check_plan_supported(plan(graph, "sm_90a", self.choices))

        def close(self) -> None:
            pass

    monkeypatch.setattr(card_engines, "CardEngines", Engines)
    monkeypatch.setattr(devices, "choose_device", lambda _: ("cuda", None))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    graph = with_sparse_conv2(rounded(random_graph(LENET5, bias=False)))
    save_weights(tmp_path / "sparse.h5", graph.parameters, network=LENET5, input_scale=graph.input_scale)
    for options, is_sparse in (({"resident": True}, False), ({"sparse": False}, False), ({}, True)):
        given: dict[str, Any] = {"precision": precision, **options}
        with Classifier(tmp_path / "sparse.h5", **given) as classifier:
            engines: Any = classifier._engines
            assert plan(classifier.graph, "sm_90a", engines.choices).nodes[0].variant.sparse == is_sparse


def test_every_image_gets_its_results(host: ResidentKernel) -> None:
    kernel = KernelThread(host)
    for seed in range(2 * MOST):
        images = random_images(LENET5, 1 + seed % MOST, seed=seed)
        labels, logits = expected_results(images)
        for given in (images, images[:, 0]):
            answer = host.run(given)
            assert answer is not None and answer[0].dtype == np.uint8
            np.testing.assert_array_equal(answer[0], labels)
            np.testing.assert_array_equal(answer[1](), logits)
        answer = host.run(images[0, 0])
        assert answer is not None and answer[0].shape == () and answer[0] == labels[0]
        np.testing.assert_array_equal(answer[1](), logits[0])
    assert kernel.launches == 1
    host.close()
    kernel.join()


def test_results_share_no_memory_with_later_ones(host: ResidentKernel) -> None:
    """A later call does not change earlier results, and writing to results does not change later ones."""
    KernelThread(host)
    first, second = random_images(LENET5, 2)[:, 0]
    answers = [host.run(first), host.run(second)]
    for answer, image in zip(answers, (first, second), strict=True):
        assert answer is not None
        labels, logits = expected_results(image[None])
        np.testing.assert_array_equal(answer[1](), logits[0])
        assert answer[0] == labels[0]
        answer[0][...] = 77
    again = host.run(first)
    assert again is not None and again[0] == expected_results(first[None])[0][0]
    host.close()


@pytest.mark.parametrize(
    "given",
    [
        np.zeros((MOST + 1, 28, 28), np.uint8),
        np.zeros((0, 28, 28), np.uint8),
        np.zeros((28, 28), np.float32),
        np.zeros((28, 28), np.int8),
        np.zeros((28, 56), np.uint8)[:, ::2],
        np.zeros((27, 28), np.uint8),
        np.zeros((1, 1, 1, 28, 28), np.uint8),
    ],
)
def test_unsupported_arrays_give_none(host: ResidentKernel, given: np.ndarray) -> None:
    assert host.run(given) is None


def test_an_ended_kernel_is_started_again(host: ResidentKernel) -> None:
    """The kernel ends when idle, and on request; the next call starts it and gets its results."""
    kernel = KernelThread(host, idle=0.01)
    images = random_images(LENET5, 3)
    for launches in (1, 2):
        answer = host.run(images)
        assert answer is not None and kernel.launches == launches
        kernel.join()
    kernel.idle = 5.0
    host.run(images)
    for _ in range(3):
        host.request_end()
        kernel.join()
        answer = host.run(images)
        assert answer is not None
        np.testing.assert_array_equal(answer[0], expected_results(images)[0])
    assert kernel.launches == 6
    host.close()
    kernel.join()
    launches = kernel.launches
    host.close()  # it has ended already
    assert kernel.launches == launches


def test_request_numbers_wrap_around(host: ResidentKernel) -> None:
    host._number = resident.NUMBERS - 2
    for image in random_images(LENET5, 5)[:, 0]:
        kernel = KernelThread(host)  # a new one each time: its own request numbers do not wrap
        answer = host.run(image)
        assert answer is not None and answer[0] == expected_results(image[None])[0][0]
        host.request_end()
        kernel.join()
    assert host._number < 10


def test_an_interrupt_leaves_the_kernel_usable(host: ResidentKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    images = random_images(LENET5, 2)[:, 0]
    kernel = KernelThread(host, idle=0.05)
    host.run(images[0])
    kernel.join()

    def raise_interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(host, "_start", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            host.run(images[1])
    kernel.idle = 5.0
    for image in images:
        answer = host.run(image)
        assert answer is not None and answer[0] == expected_results(image[None])[0][0]
    host.close()


def exact_graph() -> Graph:
    return rounded(random_graph(LENET5, bias=False))


@pytest.mark.parametrize("precision", ["fp16", "fp32x"])
def test_the_kernel_compiles_for_hopper(precision: str) -> None:
    found = compile_time_constants(plan(exact_graph(), "sm_90a", Choices(precision=precision)))
    assert b"\0resident_wgmma\0" in compile_kernel(resident.SOURCE, found, "sm_90a")


@pytest.mark.parametrize(
    ("graph", "precision", "arch"),
    [
        (exact_graph(), "fp16", "sm_80"),
        (exact_graph(), "fp32", "sm_90a"),
        (random_graph(LENET5, bias=False), "fp32x", "sm_90a"),
        (random_graph(LENET5), "fp16", "sm_90a"),
        (random_graph(MLP), "fp16", "sm_90a"),
    ],
)
def test_unsupported_plans_are_refused(graph: Graph, precision: str, arch: str) -> None:
    with pytest.raises(UserError, match="resident=True serves lenet5 on Hopper GPUs"):
        resident.check_plan_supported(plan(graph, arch, Choices(precision=precision)))
