"""Define the registry rows of the kernels for lenet5 with sparse second filters; pack the filters.

sparse_filters.py describes the operands of float16. Of bytes, A is 64 maps x 64 numbers along k, as 64 x 32 kept
weights: four parts of 16 input maps of one tap. Product 6 h + r has taps 0 to 3 of filter row r, for half h of the
input maps; product 6 h + 5 has the last taps of rows 0 to 3. Parts 1 and 3 of product 12 are the last tap of either
half; its other weights are 0. A register holds the metadata of one row and two parts: lanes 0 and 1 of every four
provide the first two parts of rows g and g + 8, lanes 2 and 3 the other two. So all lanes provide it, and the selector
is 0.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from app.base.precision import INTEGERS
from app.kernels.fused.conv_pair import (
    FILTER_STEP,
    POOLED_IMAGE,
    WINDOWS,
    configure_persistent,
    hopper_row,
    pack_convolutions,
    pack_core_matrices,
    pack_int8_filters,
    wgmma_refusal_reason,
)
from app.kernels.plain_problems import Argument
from app.kernels.problems import ConvPairProblem
from app.kernels.sparse_filters import compressed_filters, four_bits, kept_places, metadata_words, sparse_pair_work
from app.kernels.variant import LaunchConfig, Packing, Parameters, Unfit, Variant

METADATA, BEHIND = 4 * 128 * 16, 2560  # bytes; BEHIND: after bytes' pooled maps, for each image, see the kernel
# By images of each at a time: as many as have registers (96, 135, 166 by ptxas; of bytes 96, 135, 165).
WARPGROUPS = {2: 5, 3: 3, 4: 3}


def byte_metadata_words(places: np.ndarray) -> np.ndarray:
    """Return what the threads of a warpgroup provide for products of bytes: (16 fours, 2, P, 64) → (P, 128) uint32.

    Thread 32 w + 4 g + t: for map 16 w + 8 (t % 2) + g, the four bits of each of eight fours from 8 (t / 2) on.
    """
    parts = four_bits(places).reshape(2, 8, -1, 4, 2, 8)  # axes: half of the fours, four, product | warp, t % 2, g
    shifts = 4 * np.arange(8, dtype=np.uint32)
    words = (parts << shifts[:, None, None, None, None]).sum(axis=1, dtype=np.uint32)
    return words.transpose(1, 2, 4, 0, 3).reshape(-1, 128)


def pack_sparse_filters(filters: np.ndarray) -> np.ndarray:
    """Pack (32, 5, 5, 64) float16 or int8 as bytes: core matrices of the kept weights, then metadata.

    A thread's words of metadata lie in four vectors: (4, 128, 4). Raises ValueError if the filters are not sparse.
    """
    is_bytes = filters.dtype == np.int8
    along_k = parts_along_k(filters) if is_bytes else filters.reshape(32, 25, -1)
    places = kept_places(along_k)
    words = byte_metadata_words(places) if is_bytes else metadata_words(places)
    vectors = np.pad(words, ((0, -len(words) % 4), (0, 0))).reshape(-1, 4, 128).transpose(0, 2, 1)
    compressed = compressed_filters(along_k, places)
    parts = pack_core_matrices(compressed), np.ascontiguousarray(vectors)
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])


def parts_along_k(filters: np.ndarray) -> np.ndarray:
    """Return int8 filters (32, 5, 5, 64) in the order of their products: (64 numbers along k, 13 products, 64)."""
    taps = filters.reshape(2, 16, 5, 5, -1)  # axes: half of the channels, channel, row, column, map
    first_four, last = taps[:, :, :, :4].transpose(0, 2, 3, 1, 4), taps[:, :, :4, 4].swapaxes(1, 2)[:, None]
    parts = np.zeros((13, 4, 16, taps.shape[-1]), filters.dtype)
    parts[:12] = np.concatenate([first_four, last], axis=1).reshape(12, *parts.shape[1:])
    parts[12, 1::2] = taps[:, :, 4, 4]
    return parts.transpose(1, 2, 0, 3).reshape(64, 13, -1)


def _configure(problem: ConvPairProblem, products: int, warpgroups: int, beside_filters: int) -> LaunchConfig:
    """Return the launch configuration. beside_filters: bytes of shared memory without second filters and metadata."""
    filters2 = products * FILTER_STEP + METADATA
    config = configure_persistent(problem, warpgroups, filters2 + beside_filters)
    assert config.packing is not None
    filters1, _, scales = config.packing.takes
    takes = (filters1, Argument("filters2", "uint8", fixed=filters2), scales)
    pack = pack_int8_filters if problem.dtype == INTEGERS else pack_convolutions
    return replace(config, packing=Packing(takes, partial(pack, problem, pack2=pack_sparse_filters)))


def _configure_images(problem: ConvPairProblem, parameters: Parameters) -> LaunchConfig:
    images, integers = parameters["images"], problem.dtype == INTEGERS
    if images not in WARPGROUPS:
        raise Unfit(f"there are no registers for {images} images in each warpgroup")
    warpgroups = WARPGROUPS[images]
    each = images * POOLED_IMAGE // (1 + integers) + 2 * WINDOWS
    products, behind = (13, 8 + images * BEHIND) if integers else (25, 16)
    config = _configure(problem, products, warpgroups, warpgroups * each + behind)
    return replace(config, defines={"IMAGES": images, "WARPGROUPS": warpgroups})


def _configure_exact(problem: ConvPairProblem, _: Parameters) -> LaunchConfig:
    return _configure(problem, 25, 3, 3 * (4 * POOLED_IMAGE + 2 * WINDOWS) + 8)


sparse_row = partial(hopper_row, system="none of them", sparse=True, work=sparse_pair_work)
by_images = partial(
    sparse_row, configure=_configure_images, tunables={"images": (2, 3, 4)}, defaults=lambda _: {"images": 2}
)
ROWS: tuple[Variant, ...] = (
    by_images(
        7,
        "wgmma_sparse",
        dtypes=("float16",),
        since="wgmma",
        summary="step 2, its second convolution with 2:4 sparse filters: half the tensor-core time",
    ),
    sparse_row(
        8,
        "wgmma_sparse_exact",
        configure=_configure_exact,
        dtypes=("float16x2",),
        since="wgmma-exact",
        summary="step 4, its second convolution with 2:4 sparse filters: half the tensor-core time",
        refuses=partial(wgmma_refusal_reason, exact=True),
    ),
    by_images(
        9,
        "wgmma_sparse_int8",
        dtypes=("int8",),
        since="wgmma-int8",
        summary="step 5, its second convolution with 2:4 sparse filters: half the tensor-core time",
    ),
)
