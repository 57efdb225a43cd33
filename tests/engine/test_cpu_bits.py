"""Test that NumPy's engine computes the same bits for an image in every batch, chunk and position, on any processor."""

import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from app.layers import products
from app.layers.products import BLOCK, GROUP, RowRounding, multiply_rows
from app.network.definitions import Network
from tests.support.cpu_bits import KINDS, crashes, networks, unlike, why_not
from tests.support.shell import ROOT

NAMES = [network.name for network in networks()]


@pytest.mark.parametrize("network", networks())
def test_scores_do_not_depend_on_batch_position_or_threads(network: Network) -> None:
    assert [*unlike(network)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_independent_of_the_batch_on_every_processor(kind: str, pytestconfig: pytest.Config) -> None:
    """With ``--sample``, every second network runs, each on one of the available kinds of processor."""
    reason = why_not(kind)
    if reason is not None:
        pytest.skip(reason)
    kinds = [one for one in KINDS if why_not(one) is None]
    seed = pytestconfig.getoption("sample")
    names = NAMES if seed is None else NAMES[seed % 2 :: 2][(seed + kinds.index(kind)) % len(kinds) :: len(kinds)]
    assert _differences_with(names, OPENBLAS_CORETYPE=kind) == ""


def test_scores_are_independent_of_the_batch_without_vector_instructions(pytestconfig: pytest.Config) -> None:
    """With ``--sample``, every seventh network runs."""
    features = np._core._multiarray_umath  # type: ignore[attr-defined]
    found = [name for name in features.__cpu_dispatch__ if features.__cpu_features__.get(name)]
    if not found:
        pytest.skip("NumPy uses none here")
    seed = pytestconfig.getoption("sample")
    names = NAMES if seed is None else NAMES[seed % 7 :: 7]
    assert _differences_with(names, NPY_DISABLE_CPU_FEATURES=" ".join(found)) == ""


def _differences_with(names: Sequence[str], **environment: str) -> str:
    """Return what ``tests.support.cpu_bits`` prints for these networks with these environment variables."""
    command = [sys.executable, "-m", "tests.support.cpu_bits", *names]
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=600, check=False
    )
    kind = environment.get("OPENBLAS_CORETYPE")
    if kind is not None and ended.returncode < 0 and crashes(kind):
        pytest.skip(f"NumPy {np.__version__} by itself crashes with {kind}'s kernels here")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("straight", [True, False])
@pytest.mark.parametrize(("used", "margin"), [(GROUP, 0), (GROUP, 8), (GROUP, None), (1, None), (1, 8)])
def test_products_are_right_for_every_row_rounding(
    used: int, margin: int | None, straight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "measure_row_rounding", lambda *shape: RowRounding(used, margin, straight))
    rng = np.random.default_rng(0)
    for rows in (0, 1, 7, 8, 9, BLOCK - 1, BLOCK, 2 * BLOCK + 11):
        x, weights = rng.standard_normal((rows, 37)), rng.standard_normal((37, 11))
        wanted = np.einsum("bi,io->bo", x, weights)
        np.testing.assert_allclose(multiply_rows(x, weights), wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("in_a_block", "in_a_group", "straight", "expected"),
    [
        ([], [], [], RowRounding(GROUP, 0, True)),
        ([0, -1], [], [], RowRounding(GROUP, 8, True)),
        ([BLOCK // 2], [], [], RowRounding(GROUP, None, True)),
        ([], [3], [3], RowRounding(1, 0, True)),
        ([], [], [3], RowRounding(GROUP, 0, False)),
    ],
)
def test_the_row_rounding_of_a_library_is_measured(
    in_a_block: list[int],
    in_a_group: list[int],
    straight: list[int],
    expected: RowRounding,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def multiply(x: np.ndarray, weights: np.ndarray, other: list[int]) -> np.ndarray:
        y = np.array([row @ weights for row in x])
        y[other, 0] = np.nextafter(y[other, 0], np.inf)
        return y

    def block(x: np.ndarray, weights: np.ndarray, margin: int) -> np.ndarray:
        return multiply(np.pad(x, ((margin, margin), (0, 0))), weights, in_a_block)[margin : margin + BLOCK]

    monkeypatch.setattr(products, "_multiply_block", block)

    def groups(x: np.ndarray, weights: np.ndarray, used: int, straightly: bool) -> np.ndarray:
        return multiply(x, weights, straight if straightly else in_a_group)

    monkeypatch.setattr(products, "_multiply_in_groups", groups)
    assert products.measure_row_rounding.__wrapped__(29, 300, "<f4") == expected
