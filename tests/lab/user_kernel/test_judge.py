"""Test how ``bench`` judges a user's kernel, with NumPy in place of CuPy and functions in place of kernels."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.kernels.problems import LinearProblem
from app.lab.bench.compiling import WrongResult
from app.main_job.statistics import LEAST_RUNS
from tests.support.host_kernels import Memory

PROBLEM, IMAGES = LinearProblem(6, 4), 600
Kernel = Callable[[np.ndarray, np.ndarray, np.ndarray], None]  # x (images, inputs), w (inputs, outputs), y


class Array(np.ndarray):
    """An array in place of one on the card."""

    @property
    def data(self) -> Any:
        return Memory(self.ctypes.data)

    def set(self, content: np.ndarray) -> None:
        self.ravel()[:] = content


@pytest.fixture
def judge_function(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kernel], tuple[float, Any]]:
    """Return a function that judges a NumPy function in place of a kernel and returns worst error and timing."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.lab.bench import trial
    from app.lab.user_kernel import judge

    pool = SimpleNamespace(free_all_blocks=lambda: None)
    fake = SimpleNamespace(
        asarray=np.asarray, take=np.take, where=np.where, maximum=np.maximum, minimum=np.minimum,
        cuda=SimpleNamespace(Device=lambda: SimpleNamespace(synchronize=lambda: None),
                             memory=SimpleNamespace(OutOfMemoryError=MemoryError)),
        get_default_memory_pool=lambda: pool,
    )  # fmt: skip
    monkeypatch.setattr(judge, "cupy", fake)
    monkeypatch.setattr(trial, "cupy", fake)
    monkeypatch.setattr(trial, "device_array", lambda count, dtype: np.zeros(count, dtype).view(Array))
    monkeypatch.setattr(trial, "upload", lambda array: array)
    monkeypatch.setattr(trial.Trial, "_fill_input", lambda *_: None)

    def time_sample(enqueue: Callable[[], None], count: int, l2: str, actions: int) -> float:
        assert count == 1, "a second launch would find the results of the first"
        enqueue()
        return 1.0

    clock = SimpleNamespace(stream=SimpleNamespace(ptr=0), time_sample=time_sample)
    monkeypatch.setattr(trial, "Clock", lambda arch: clock)

    def run(kernel: Kernel) -> tuple[float, Any]:
        one = judge.Judge(PROBLEM, IMAGES, "sm_90a")
        w = np.asarray(one.parameters[0]).view(Array)
        one.bound = [w, None]

        def launch(stream: int, images: int) -> None:
            kernel(one.x.reshape(images, -1), w, one.outputs["y"].reshape(images, -1))

        config = SimpleNamespace(actions=(None,))
        launch.kernel = SimpleNamespace(config=config, variant=SimpleNamespace(error_bound=None), pack=list)  # type: ignore[attr-defined]
        return one.check_and_time(launch, 0.01, "cold")  # type: ignore[arg-type]

    return run


def honest(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    y[:] = x @ w


def repeated_images(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    """Is right if the images repeat after 251."""
    y[:251] = x[:251] @ w
    y[251:] = y[np.arange(251, len(y)) % 251]


def lazy_image(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    """Leaves out one image of the batch."""
    y[:-1] = x[:-1] @ w


def repeats_first_results() -> Kernel:
    """Return a kernel that repeats the results of its first run."""
    kept: list[np.ndarray] = []

    def kernel(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
        kept[:] = kept or [x @ w]
        y[:] = kept[0]

    return kernel


def keeps_first_weights() -> Kernel:
    """Return a kernel that always uses the weights of its first run."""
    kept: list[np.ndarray] = []

    def kernel(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
        kept[:] = kept or [w.copy()]
        y[:] = x @ kept[0]

    return kernel


def works_until_run(first: int) -> Kernel:
    """Return a kernel that writes nothing from run ``first`` on."""
    runs = itertools.count()

    def kernel(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
        if next(runs) < first:
            honest(x, w, y)

    return kernel


def works_on_poison(byte: int) -> Kernel:
    """Return a kernel that writes only if all bytes of the output are ``byte``."""

    def kernel(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
        if (y.view(np.uint8) == byte).all():
            honest(x, w, y)

    return kernel


def test_an_honest_kernel_is_right(judge_function: Callable[[Kernel], tuple[float, Any]]) -> None:
    for _ in range(5):
        error, timing = judge_function(honest)
        assert 0 < error < 1 and len(timing.samples) >= LEAST_RUNS


CHEATS: dict[str, Callable[[], Kernel]] = {
    "repeated": lambda: repeated_images,
    "lazy": lambda: lazy_image,
    "cached": repeats_first_results,
    "weights": keeps_first_weights,
    "once": lambda: works_until_run(1),
    "seven times": lambda: works_until_run(7),
    "until timed": lambda: works_until_run(LEAST_RUNS),
    "NaN": lambda: works_on_poison(0xFF),
    "zeros": lambda: works_on_poison(0),
    "nothing": lambda: lambda x, w, y: None,
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_found(cheat: str, judge_function: Callable[[Kernel], tuple[float, Any]]) -> None:
    for _ in range(5):
        with pytest.raises(WrongResult, match="wrong: image"):
            judge_function(CHEATS[cheat]())


def test_every_run_has_new_images(judge_function: Callable[[Kernel], tuple[float, Any]]) -> None:
    seen: list[bytes] = []

    def kernel(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
        seen.append(x.tobytes())
        assert len(np.unique(x, axis=0)) > 200 and (x[:300] != x[251:551]).any()
        honest(x, w, y)

    judge_function(kernel)
    assert len(set(seen)) == len(seen) >= LEAST_RUNS
