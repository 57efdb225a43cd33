"""Test the registry's rows: the problems that they support or refuse, and launches within the hardware's limits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.base.precision import DTYPES
from app.cuda.compiler import ARCHITECTURES, architecture_number
from app.kernels import registry
from app.kernels.plain_problems import ITEMSIZE
from app.kernels.problems import LONG_SUM, ConvProblem, LinearProblem, Problem
from app.kernels.registry import VARIANTS
from app.kernels.variant import SHARED_LIMIT, ConstantCopy, KernelLaunch, LaunchConfig, Variant
from app.planning.tuning import Tuning
from tests.support.kernel_cases import STRIDE_1, weight_shape
from tests.support.kernel_grid import problems, row_of, served, toy_variant, typed

ALL_VARIANTS = pytest.mark.parametrize("row", VARIANTS, ids=lambda row: row.source.removesuffix(".cu"))
CARD_BYTES = 288 << 30  # more memory than any card has: no batch can be larger
CONSTANT_BYTES = 64 << 10
READ_ACTIVATIONS = ("warpgroup", "warpgroup-sparse")  # read only the type that they multiply
HARDWARE = ("constant memory", "shared memory", "threads", "sm_", "grid")


def _image_counts(problem: Problem, config: LaunchConfig) -> list[int]:
    """Return numbers of images that a launch may get, up to as many as fit in the memory of any GPU."""
    per_image = sum(argument.per_image * ITEMSIZE[argument.dtype] for argument in problem.arguments())
    most = min(1_000_000, max(CARD_BYTES // per_image, 1))
    piece = config.images_at_a_time or most
    return sorted({min(images, most, piece) for images in (1, 2, 7, 10_000, most)})


@ALL_VARIANTS
def test_launches_fit_the_hardware(row: Variant) -> None:
    for problem in served(row, "sm_90a"):
        config = row.launch_config(problem)
        assert config.actions
        for launch in config.launches:
            assert launch.threads % 32 == 0 and 0 < launch.threads <= 1024, problem
            assert 0 <= launch.shared_bytes <= SHARED_LIMIT[90] << 10
            for images in _image_counts(problem, config):
                x, y, z = launch.grid(images)
                if not x * y * z:  # another launch has these images
                    assert any(other.grid(images)[0] for other in config.launches), problem
                    continue
                assert 0 < x < 2**31 and 0 < y <= 65_535 and 0 < z <= 65_535, (problem, images, launch.grid(images))


@ALL_VARIANTS
def test_no_row_exceeds_the_shared_memory_of_an_architecture(row: Variant) -> None:
    """Rows refuse problems beyond the shared memory; one architecture is checked for each size of it."""
    for kilobytes, arch in {SHARED_LIMIT[architecture_number(arch)]: arch for arch in ARCHITECTURES}.items():
        for problem in served(row, arch):
            assert all(launch.shared_bytes <= kilobytes << 10 for launch in row.launch_config(problem).launches), arch


@ALL_VARIANTS
def test_only_hardware_limits_exclude_convolutions(row: Variant) -> None:
    if row.operation == "conv" and row.taught and row.instructions != "wgmma":  # which needs sizes that fill its tiles
        for problem in problems(row):
            if problem.bounded or problem.sparse:  # type: ignore[union-attr]  # a form that only one kernel reads
                continue
            reason = row.refusal_reason(problem, "sm_90a")
            if row.name in STRIDE_1 and problem.stride > 1:  # type: ignore[union-attr]
                assert "stride 1 alone" in str(reason)
            elif problem.pool > 1:  # type: ignore[union-attr]
                assert reason is None or "pooling" in reason or any(word in reason for word in HARDWARE), reason
            else:
                assert reason is None or any(word in reason for word in HARDWARE), (reason, problem)


@ALL_VARIANTS
def test_parameters_below_one_are_refused(row: Variant) -> None:
    problem = served(row, "sm_90a")[0]
    for name in row.tunables:
        for value in (0, -8):
            assert row.refusal_reason(problem, "sm_90a", {name: value}) == f"{name} must be at least 1, not {value}"


def test_patches_that_do_not_fit_are_refused() -> None:
    row, problem = row_of("conv", "register-patch"), ConvProblem(1, 28, 28, 32, 5, pool=2)
    windows = "no whole pooling windows of 2 x 2"
    for tr, tc, reason in ((2, 5, windows), (1, 4, windows), (4, 4, "128 sums do not fit in a thread's registers")):
        refusal = row.refusal_reason(problem, "sm_90a", row.defaults(problem) | {"TR": tr, "TC": tc})
        assert reason in str(refusal)


@ALL_VARIANTS
def test_matrix_products_are_refused_only_for_their_argmax(row: Variant) -> None:
    """Some rows do not fuse an argmax, and none over many classes; warpgroups also need multiples of eight inputs."""
    if row.operation == "gemm":
        for problem in problems(row):
            assert isinstance(problem, LinearProblem)
            reason = row.refusal_reason(problem, "sm_90a")
            if row.name in READ_ACTIVATIONS and problem.inputs % 8:
                assert reason is not None
            else:
                assert reason is None or (problem.argmax and "argmax" in reason), (reason, problem)


@ALL_VARIANTS
def test_rows_support_every_storage_type_of_activations(row: Variant) -> None:
    """Loads and stores convert types, so no row may refuse a storage type of the activations."""
    if row.name in READ_ACTIVATIONS:
        return
    for problem in served(row, "sm_90a")[:12]:
        if isinstance(problem, ConvProblem | LinearProblem):
            for stored in ("uint8", "float16", "float32", "float64"):
                wide = "float32" if stored == "uint8" else stored
                other = replace(problem, input_dtype=stored, output_dtype=wide)
                assert row.refusal_reason(other, "sm_90a") is None, row.refusal_reason(other, "sm_90a")


@ALL_VARIANTS
def test_rows_refuse_types_that_they_do_not_declare(row: Variant) -> None:
    arch = "sm_120" if row.only_arch is None else f"sm_{row.only_arch}"
    for dtype in set(DTYPES) - set(row.dtypes):
        for problem in problems(row)[:3]:
            assert f"not {dtype}" in str(row.refusal_reason(typed(problem, dtype), arch))


def _config_fingerprint(problem: Problem, config: LaunchConfig) -> tuple[Any, ...]:
    images = _image_counts(problem, config)[-1]
    launches = [(x.threads, x.grid(images), x.scalars, x.shared_bytes) for x in config.launches]
    return config.defines, launches, config.workspace, config.images_at_a_time, len(config.actions)


@ALL_VARIANTS
def test_every_tunable_has_a_default_and_makes_a_difference(row: Variant) -> None:
    found = served(row, "sm_90a")
    assert all(set(row.defaults(problem)) == set(row.tunables) for problem in found)
    for name, values in row.tunables.items():
        assert len(set(values)) == len(values) > 1 and tuple(sorted(values)) == tuple(values), name
        different = {
            repr(_config_fingerprint(problem, row.launch_config(problem, {name: value})))
            for problem in found[:12]
            for value in values
            if row.refusal_reason(problem, "sm_90a", {name: value}) is None
        }
        kept = {repr(_config_fingerprint(problem, row.launch_config(problem))) for problem in found[:12]}
        assert different - kept, f"{row.source}: {name} changes nothing"


@ALL_VARIANTS
def test_weights_are_packed_into_the_declared_number_of_elements(row: Variant) -> None:
    for problem in served(row, "sm_90a"):
        packing = row.launch_config(problem).packing
        if packing is None or not isinstance(problem, ConvProblem | LinearProblem) or row.name in READ_ACTIVATIONS:
            continue
        if row.error_bound is not None:  # other numbers: test_toom_cook.py
            continue
        weights, bias = problem.arguments()[1:3]
        if weights.fixed > 10**5:
            continue
        # Numbers that even float16 holds, none of them zero.
        values = (np.arange(weights.fixed) % 2039 + 1).astype(weights.dtype)
        packed, none = packing.pack([values.reshape(weight_shape(problem)), None])
        assert packed is not None and none is None
        assert packing.takes == (replace(weights, fixed=packed.size), bias) and packed.size >= weights.fixed
        # Every weight is in the packed array at least as often as in the original; the rest are copies and zeros.
        found, wanted = (np.bincount(array.ravel().astype(int), minlength=2040) for array in (packed, values))
        assert (found[1:] >= wanted[1:]).all()


@ALL_VARIANTS
def test_slices_of_constant_memory_cover_the_filters(row: Variant) -> None:
    """Each slice fits and is followed by a launch; together the slices copy every weight once."""
    for problem in served(row, "sm_90a"):
        config = row.launch_config(problem)
        copies = [action for action in config.actions if isinstance(action, ConstantCopy)]
        if not copies:
            continue
        weights = next(argument for argument in problem.arguments() if argument.name == "w")
        ends = [copy.first + copy.count for copy in copies]
        assert [copy.first for copy in copies] == [0, *ends[:-1]]
        assert config.packing is not None and ends[-1] == config.packing.takes[0].fixed >= weights.fixed
        for at, action in enumerate(config.actions):
            if isinstance(action, ConstantCopy):
                assert 0 < action.count * ITEMSIZE[weights.dtype] <= CONSTANT_BYTES
                assert isinstance(config.actions[at + 1], KernelLaunch)


@ALL_VARIANTS
def test_chunks_of_images_keep_the_workspace_small(row: Variant) -> None:
    for problem in served(row, "sm_90a"):
        config = row.launch_config(problem)
        per_image = sum(argument.per_image * ITEMSIZE[argument.dtype] for argument in config.workspace)
        assert bool(per_image) <= bool(config.images_at_a_time), "a workspace grows with the batch"
        if config.images_at_a_time > 1:
            assert config.images_at_a_time * per_image <= 1 << 30


def test_split_k_fills_the_workspace_limit_with_images() -> None:
    config = row_of("gemm", "split-k").launch_config(LinearProblem(1024, 128))
    assert config.images_at_a_time == (256 << 20) // (1024 // 32 * 128 * 4)


# How auto chooses and rows refuse, tested on made-up rows.


PROBLEM = ConvProblem(1, 9, 9, 4, 3)


def test_auto_takes_the_highest_step_that_supports_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        toy_variant(12, "pools", pools=True, refuses=lambda problem: None if problem.pool > 1 else "only pools"),
        toy_variant(3, "plain"),
        toy_variant(11, "hopper", min_arch=90),
        toy_variant(7, "ampere", min_arch=80),
        toy_variant(13, "on_request", automatic=False),
        replace(toy_variant(20, "other"), operation="gemm"),
    ]
    monkeypatch.setattr(registry, "TABLES", dict.fromkeys(registry.TABLES, ("tests",)))
    monkeypatch.setattr(registry, "module_variants", lambda module: {"tests": rows}.get(module, []))
    assert [row.step for row in registry.variants("conv")] == [3, 7, 11, 12, 13]

    def chosen_name(problem: Problem, arch: str, requested: str = "auto") -> str | None:
        found = Tuning().choose_kernel(problem, arch, registry.find_variant("conv", requested))
        return found[0].name if found else None

    by_arch = {arch: chosen_name(PROBLEM, arch) for arch in ARCHITECTURES}
    assert (by_arch["sm_75"], by_arch["sm_80"], by_arch["sm_89"]) == ("plain", "ampere", "ampere")
    assert (by_arch["sm_90a"], by_arch["sm_120"]) == ("hopper", "hopper")
    assert chosen_name(replace(PROBLEM, pool=2), "sm_75") == "pools"
    assert chosen_name(PROBLEM, "sm_90a", "plain") == "plain"
    assert chosen_name(PROBLEM, "sm_90a", "on-request") == "on-request"
    assert chosen_name(PROBLEM, "sm_80", "hopper") is None
    assert chosen_name(replace(PROBLEM, dtype="float64"), "sm_90a") is None
    known = "auto, plain, ampere, hopper, pools, on-request"
    with pytest.raises(UserError, match=f"unknown conv kernel 'other': choose one of {known}"):
        chosen_name(PROBLEM, "sm_90a", "other")


@pytest.mark.parametrize(
    ("changes", "problem", "arch", "reason"),
    [
        ({"min_arch": 90}, {}, "sm_80", "needs sm_90 or later, this is sm_80"),
        ({"min_arch": 90, "only_arch": 90}, {}, "sm_100", "needs sm_90 itself, this is sm_100"),
        ({"min_arch": 80}, {"dtype": "tfloat32"}, "sm_75", "needs sm_80 or later, this is sm_75"),
        ({}, {"dtype": "float16"}, "sm_90a", "computes in float32, not float16"),
        ({"dtypes": ("float32", "float64")}, {"dtype": "tfloat32"}, "sm_90a", "float32 or float64, not tfloat32"),
        ({}, {"pool": 2}, "sm_90a", "does not pool"),
        ({"refuses": lambda _: "not today"}, {}, "sm_90a", "not today"),
    ],
)
def test_refusals_say_why(changes: dict[str, Any], problem: dict[str, Any], arch: str, reason: str) -> None:
    assert reason in str(toy_variant(1, "row", **changes).refusal_reason(replace(PROBLEM, **problem), arch))


@pytest.mark.parametrize(
    ("arch", "threads", "kilobytes", "reason"),
    [
        ("sm_75", 32, 64, None),
        ("sm_75", 32, 65, "needs 66,560 bytes of shared memory"),
        ("sm_89", 32, 100, "needs 102,400 bytes of shared memory"),
        ("sm_90a", 32, 227, None),
        ("sm_90a", 32, 228, "needs 233,472 bytes of shared memory"),
        ("sm_90a", 2048, 0, "1,024 threads"),
    ],
)
def test_impossible_blocks_are_refused(arch: str, threads: int, kilobytes: int, reason: str | None) -> None:
    launch = KernelLaunch(threads, lambda _: (1, 1, 1), shared_bytes=kilobytes << 10)
    row = toy_variant(1, "greedy", configure=lambda *_: LaunchConfig({}, (launch,)))
    refusal = row.refusal_reason(PROBLEM, arch)
    assert refusal is None if reason is None else reason in str(refusal)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"BM": 48, "WM": 24}, "whole warps of 16 x 8"),
        ({"BN": 40, "WN": 20}, "whole warps of 16 x 8"),
        ({"BM": 48}, "whole warps of 16 x 8"),
        ({"BN": 48}, "whole warps of 16 x 8"),
        ({"BK": 12}, "BK is not a multiple of the depth of one mma"),
        ({"BM": 128, "BN": 128, "WM": 128, "WN": 64}, "more than 128 sums"),
        ({"BK": 128}, "exceed 48 KB of shared memory"),
        ({"BM": 128}, None),
    ],
)
def test_tiles_that_do_not_fit_are_refused(parameters: dict[str, int], reason: str | None) -> None:
    """Each case changes some defaults: tiles of 64 x 64 per block and 32 x 32 per warp, 16 terms of a long sum."""
    refusal = row_of("gemm", "tensor-core").refusal_reason(
        LinearProblem(LONG_SUM, 100, dtype="tfloat32"), "sm_90a", parameters
    )
    assert refusal is None if reason is None else reason in str(refusal)
