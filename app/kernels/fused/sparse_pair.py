"""Define the registry rows of the kernels for lenet5 with sparse second filters; pack the filters."""

from dataclasses import replace
from functools import partial

import numpy as np

from app.kernels.fused.conv_pair import (
    FILTER_STEP,
    POOLED_IMAGE,
    WINDOWS,
    configure_persistent,
    hopper_row,
    pack_convolutions,
    pack_core_matrices,
    wgmma_refusal_reason,
)
from app.kernels.plain_problems import Argument
from app.kernels.problems import ConvPairProblem
from app.kernels.sparse_filters import compressed_filters, kept_places, metadata_words, sparse_pair_work
from app.kernels.variant import LaunchConfig, Packing, Parameters, Unfit, Variant

METADATA = 4 * 128 * 16  # bytes
WARPGROUPS = {2: 5, 3: 3, 4: 3}  # by images of each at a time: as many as have registers (96, 135, 166 by ptxas)


def pack_sparse_filters(filters: np.ndarray) -> np.ndarray:
    """Pack (32, 5, 5, 64) float16 as bytes: core matrices of the kept weights, then metadata, four words of a thread
    for each eight taps. Raises ValueError if they are not sparse.
    """
    places = kept_places(filters)
    words = metadata_words(places.reshape(*places.shape[:2], -1, places.shape[-1]))
    vectors = np.pad(words, ((0, -len(words) % 4), (0, 0))).reshape(-1, 4, 128).transpose(0, 2, 1)
    parts = pack_core_matrices(compressed_filters(filters, places)), np.ascontiguousarray(vectors)
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])


def _configure_sparse(problem: ConvPairProblem, warpgroups: int, beside_filters: int) -> LaunchConfig:
    """Return the launch configuration. beside_filters: bytes of shared memory without second filters and metadata."""
    filters2 = problem.second.kernel**2 * FILTER_STEP + METADATA
    config = configure_persistent(problem, warpgroups, filters2 + beside_filters)
    assert config.packing is not None
    filters1, _, scales = config.packing.takes
    takes = (filters1, Argument("filters2", "uint8", fixed=filters2), scales)
    return replace(config, packing=Packing(takes, partial(pack_convolutions, problem, pack2=pack_sparse_filters)))


def _configure_float16(problem: ConvPairProblem, parameters: Parameters) -> LaunchConfig:
    images = parameters["images"]
    if images not in WARPGROUPS:
        raise Unfit(f"there are no registers for {images} images in each warpgroup")
    warpgroups = WARPGROUPS[images]
    config = _configure_sparse(problem, warpgroups, warpgroups * (images * POOLED_IMAGE + 2 * WINDOWS) + 16)
    return replace(config, defines={"IMAGES": images, "WARPGROUPS": warpgroups})


def _configure_exact(problem: ConvPairProblem, _: Parameters) -> LaunchConfig:
    return _configure_sparse(problem, 3, 3 * (4 * POOLED_IMAGE + 2 * WINDOWS) + 8)


ROWS: tuple[Variant, ...] = (
    hopper_row(
        7,
        "wgmma_sparse",
        system="none of them",
        configure=_configure_float16,
        dtypes=("float16",),
        since="wgmma",
        summary="step 2, its second convolution with 2:4 sparse filters: half the tensor-core time",
        sparse=True,
        work=sparse_pair_work,
        tunables={"images": (2, 3, 4)},
        defaults=lambda _: {"images": 2},
    ),
    hopper_row(
        8,
        "wgmma_sparse_exact",
        system="none of them",
        configure=_configure_exact,
        dtypes=("float16x2",),
        since="wgmma-exact",
        summary="step 4, its second convolution with 2:4 sparse filters: half the tensor-core time",
        refuses=partial(wgmma_refusal_reason, exact=True),
        sparse=True,
        work=sparse_pair_work,
    ),
)
