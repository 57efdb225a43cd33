"""Test the whole ``bench`` command with a fake card: output, files, stored results, and refused options."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from app.base.precision import storage_dtype
from app.cli import main
from app.kernels.plain_problems import ActivationProblem, SoftmaxProblem
from app.kernels.problems import ConvProblem, LinearProblem, PairProblem, PoolProblem, Problem, tuning_key
from app.lab.bench.oracle import random_images, random_parameters
from app.lab.bench.tolerance import allowed_errors, rms
from app.layers import Conv2d
from app.network.definitions import NETWORKS
from app.planning import tuning
from tests.lab.conftest import RunBench
from tests.support.drawn_pairs import DRAWN_PAIRS
from tests.support.kernel_cases import input_shape
from tests.support.kernel_grid import convolution_pair, exactly, product_pair, typed
from tests.support.kernel_oracle import expected_of
from tests.support.shell import Refuses


def test_bench_prints_and_stores_all_results(card: type[Any], run_bench: RunBench) -> None:
    code, text, found = run_bench("--batches 20,80 --save-tuning")
    assert code == 1  # a variant was wrong
    assert "wrong: image 3" in text
    assert "conv2: 80 images do not fit in device memory, 40 were used" in text
    assert "no cuDNN rows: PyTorch is not installed" in text
    assert found["schema"] == "lenet5-inference/bench/1"
    assert [batch["images"] for batch in found["batches"]] == [20, 80]
    conv1 = next(table for table in found["tables"] if table["item"] == "conv1")
    assert conv1["images"] == 40
    assert [row["kind"] for row in conv1["rows"]][:2] == ["cpu", "library"]
    rows = {row["name"]: row for row in conv1["rows"] if row["dtype"] == "float32"}
    assert rows["direct"]["rates"]["previous_ratio"] == 0.5
    assert rows["direct, device debug"]["kind"] == "debug"
    assert rows["shared-tile"]["wrong"]
    sums = {row["name"]: row["sum_ms"] for row in found["totals"] if row["dtype"] == "float32"}
    assert sums["direct"] == 4.0
    problem = ConvProblem(1, 28, 28, 32, 5, input_dtype="uint8")
    chosen = tuning.load("Some Card").choose_kernel(problem, "sm_90a")
    assert chosen is not None
    assert chosen[0].name == "image-loop"  # the "fastest", being step 1


def test_one_shape_and_one_variant(card: type[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--shape", "3,9,8,5,3,2", "--only", "direct", "--batch", "7", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    (table,) = found["tables"]
    assert {row["name"] for row in table["rows"]} == {"CPU, NumPy", "direct", "direct, device debug"}
    assert found["whole_program"] == []
    assert set(card.made) == {7}


@pytest.mark.parametrize("message", ["not even one image fits", "interrupted"])
def test_a_failed_bench_writes_no_file(
    message: str, card: type[Any], refuses: Refuses, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from app.cuda.memory import DeviceMemoryError
    from app.lab.bench import ladder

    error = KeyboardInterrupt if message == "interrupted" else DeviceMemoryError("full")
    monkeypatch.setattr(ladder, "Trial", Mock(side_effect=error))
    refuses(f"bench --shape 3,9,8,5,3,2 --batch 7 --json {tmp_path / 'bench.json'}", message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("network", NETWORKS)
def test_each_network(network: str, card: type[Any], run_bench: RunBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """First layers read bytes; where the network resizes images first, this has a table, too."""
    monkeypatch.setattr("app.lab.bench.ladder.CPU_FLOPS", 1e6)
    _, text, found = run_bench(f"--network {network} --batches 3,5")
    tables = {table["item"]: table for table in found["tables"]}
    layers = {layer.name: layer for layer in NETWORKS[network].layers}
    ops = [name for name, layer in layers.items() if isinstance(layer, Conv2d)]
    assert [table["item"] for table in found["tables"] if table["is_op"]] == ops
    assert ("resize" in tables) == ("resize" in layers)
    assert [(batch["images"], batch["whole_program"][0]["ms"]) for batch in found["batches"]] == [(3, 0.3), (5, 0.5)]
    assert found["whole_program"] == found["batches"][-1]["whole_program"]
    assert all(f"Whole program, {images} images" in text for images in (3, 5))
    assert ("Sum of the op times by batch size" in text) == bool(ops)
    if ops:
        size = layers["resize"].size if "resize" in layers else 28  # type: ignore[attr-defined]
        assert f"height={size} width={size} " in tables["conv1"]["problems"]["float32"]
        assert "input_dtype=uint8" in tables["conv1"]["problems"]["float32"]
        direct = next(row for row in found["totals"] if (row["name"], row["dtype"]) == ("direct", "float32"))
        assert set(direct["ops"]) == {"conv1", "conv2"} and direct["sum_ms"] == 4.0
    assert all(row["ms"] or row["reason"] for table in found["tables"] for row in table["rows"])
    assert all(name in text for name in tables)


# --- Correct results and tolerances


IMAGES = 5
PAIRS = (product_pair(64, 32, 5, True, True), convolution_pair(True, False))
CASES: tuple[Problem, ...] = (
    ConvProblem(3, 11, 14, 5, 3, 2, bias=True, activation="tanh", pool=2, pool_is_max=True),
    ConvProblem(1, 9, 8, 4, 5, activation="relu", pool=2, input_dtype="uint8"),
    ConvProblem(2, 4, 9, 5, 5, 2, bias=True, pool=2, padding=4),
    LinearProblem(37, 19, bias=True, activation="sigmoid"),
    LinearProblem(20, 10, argmax=True),
    PoolProblem(2, 9, 7, 3, 2, False),
    PoolProblem(2, 9, 7, 3, 2, True),
    PoolProblem(2, 9, 8, 3, 2, True, ceil=True),
    PoolProblem(2, 7, 8, 2, 5, False, ceil=True),
    ConvProblem(3, 11, 15, 5, 3, 2, bias=True, activation="tanh", pool=2, pool_is_max=True, pool_ceil=True),
    ConvProblem(1, 9, 7, 4, 5, activation="relu", pool=2, pool_ceil=True, input_dtype="uint8"),
    ActivationProblem(12, "tanh"),
    SoftmaxProblem(10),
    *(typed(pair, dtype) for pair in PAIRS for dtype in ("float16", "float16x2")),
    *(typed(DRAWN_PAIRS[at], "float16") for at in (0, 2, 10, 19)),
    *(typed(exactly(DRAWN_PAIRS[at]), "float16x2") for at in (1, 7, 10, 13, 19)),
    *(LinearProblem(72, 30, bias=True, activation="tanh", dtype="float16x2", exact=exact) for exact in (False, True)),
)


@pytest.fixture
def cpu_modules(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return the modules ``oracle`` and ``trial``, the latter with NumPy in place of CuPy."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.lab.bench import oracle, trial

    monkeypatch.setattr(trial, "cupy", np)
    return oracle, trial


def random_data(problem: Problem) -> tuple[np.ndarray, list[np.ndarray | None]]:
    """Return x (images, elements), and each layer's w and bias, as ``Trial`` draws them."""
    rng = np.random.default_rng(3)
    return random_images(rng, problem.arguments()[0], IMAGES), random_parameters(rng, problem)


@pytest.mark.parametrize("problem", CASES, ids=tuning_key)
def test_oracle_agrees_with_that_of_the_tests(problem: Problem, cpu_modules: tuple[Any, Any]) -> None:
    """Both compute exact results, magnitudes of errors and, for pairs, results of a plain implementation."""
    oracle, trial = cpu_modules
    x, arrays = random_data(problem)
    names = ("layer1", "layer1_bias", "layer2", "layer2_bias") if len(arrays) == 4 else ("layer", "layer_bias")
    given = {
        name: a.transpose(1, 2, 0, 3) if a.ndim == 4 else a
        for name, a in zip(names, arrays, strict=False)
        if a is not None
    }
    found = oracle.expected_results(problem, x, *arrays)
    wanted = expected_of(problem, x.astype(np.float64).reshape(IMAGES, *input_shape(problem)), given)
    for own, other in ((found.exact, wanted.exact), (found.magnitude, wanted.magnitude)):
        np.testing.assert_allclose(own.ravel(), other, rtol=1e-10, atol=1e-12)
    each, _ = allowed_errors(problem, found)
    # float32 arithmetic passes, one element a little off does not.
    narrow = found.exact.astype(np.float32).astype(np.float64)
    assert trial._worst_error(abs(narrow - found.exact), each, narrow, found.exact, 0) <= 1
    narrow[2, 3] += 20 * max(each[2, 3], 1e-6)
    with pytest.raises(trial.WrongResult, match="image 102, element 3 "):
        trial._worst_error(abs(narrow - found.exact), each, narrow, found.exact, 100)
    narrow[2, 3] = np.nan
    with pytest.raises(trial.WrongResult):
        trial._worst_error(abs(narrow - found.exact), each, narrow, found.exact, 0)
    if isinstance(problem, PairProblem):
        assert [a is None or (a.dtype, a.size) for a in arrays] == [
            a is None or (b.dtype, b.fixed) for a, b in zip(arrays, problem.arguments()[1:], strict=False)
        ]
        assert found.plain is not None and wanted.plain is not None
        errors = [abs(plain.ravel() - wanted.exact).max() for plain in (found.plain, wanted.plain)]
        assert 0.5 < errors[0] / errors[1] < 2
        assert (abs(found.plain - found.exact) <= each).all() and 1 <= oracle.images_within_budget(problem) < 10**7


@pytest.mark.parametrize("dtype", ["float32", "tfloat32", "float16"])
def test_tolerances_pass_plain_sums_and_catch_a_lost_term(dtype: str, cpu_modules: tuple[Any, Any]) -> None:
    oracle, trial = cpu_modules
    stored = storage_dtype(dtype)
    problem = LinearProblem(400, 60, input_dtype=stored, dtype=dtype, output_dtype=stored)
    x, (w, _) = random_data(problem)
    assert w is not None
    found = oracle.expected_results(problem, x, w)
    rounded_x, rounded_w = (oracle._operand_rounder(dtype)(array.astype(np.float64)) for array in (x, w))
    kind = np.float16 if dtype == "float16" else np.float32

    def summed(terms: int) -> np.ndarray:
        y = np.zeros((IMAGES, 60), kind)
        for k in range(terms):
            y = (y + rounded_x[:, k, None] * rounded_w[k]).astype(kind)
        return y.astype(np.float64)

    each, most_rms = allowed_errors(problem, found)
    good, short = summed(400), summed(399)
    assert trial._worst_error(abs(good - found.exact), each, good, found.exact, 0) <= 1
    trial._check_rms(rms(good - found.exact), most_rms, 0)
    with pytest.raises(trial.WrongResult):
        trial._worst_error(abs(short - found.exact), each, short, found.exact, 0)
    if dtype == "float32":
        return
    # Errors that only the RMS shows: each as large as a single element's may be.
    even = found.exact + 2 * abs(found.plain - found.exact).max()
    assert trial._worst_error(abs(even - found.exact), each, even, found.exact, 0) <= 1
    with pytest.raises(trial.WrongResult, match="from image 7 on the RMS"):
        trial._check_rms(rms(even - found.exact), most_rms, 7)


def test_wrong_labels_are_found(cpu_modules: tuple[Any, Any]) -> None:
    _, trial = cpu_modules
    values = np.array([[1.0, 3.0, 2.0], [5.0, 5.0, 1.0]])
    slack = np.full_like(values, 1e-3)
    trial._check_labels(np.array([1, 1], np.uint8), values, slack, 0)
    for labels in ([2, 0], [1, 2], [255, 0]):
        with pytest.raises(trial.WrongResult, match="label"):
            trial._check_labels(np.array(labels, np.uint8), values, slack, 0)
