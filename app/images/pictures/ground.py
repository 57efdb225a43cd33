"""Separate the object on a picture from its ground: a smooth surface, with noise, or with stripes, folds and shadows.

Measured figures behind the constants: docs/predict.md, "How well it works".
"""

from __future__ import annotations

import numpy as np

from app.base.frozen import Frozen

TOLERANCE = 20  # of 255: colours that differ less from the ground belong to it; JPEG noise stays below
RING = 0.04  # of the shorter edge: the width of the border that is taken for ground
DEVIATIONS = 4.5  # of the ground's own variation: what differs less belongs to it
PLAIN = 4  # of 255: the median difference from a smooth surface, beyond which a ground is not plain
STRIPED = 0.5  # stripes are believed in if they explain this part of what a smooth surface leaves
CELLS = 10  # along the longer edge: the resolution of folds and shadows
# Of the heaviest part's weight: lighter parts are dropped, where the border shows no folds and where it does.
LEAST_PART, LEAST_PART_IN_FOLDS = 0.002, 0.05
REFINED = 2  # how often the ground and the object are looked for again, if the ground is not plain
FITTED = 96  # pixels along the longer edge to which a surface is fitted


class Separated(Frozen):
    """ground: its colours, also under the object, (h, w, 3) float32. mask: the object, (h, w). plain: the ground."""

    ground: np.ndarray
    mask: np.ndarray
    plain: bool


def separate(picture: np.ndarray) -> Separated:
    """Separate a picture, (h, w, 3) float32 from 0 to 255. The mask is empty if nothing differs from the ground."""
    ring = border_ring(picture.shape[:2])
    ground = _fit_surface(picture)
    away = np.abs(picture - ground)[ring].max(axis=1)
    plain = float(np.median(away)) <= PLAIN
    weak = LEAST_PART if float(np.quantile(away, 0.98)) <= TOLERANCE / 2 else LEAST_PART_IN_FOLDS
    if not plain:
        ground = ground + _best_stripes(picture - ground)
    mask = _find_object(picture - ground, ring, weak)
    for _ in range(0 if plain else REFINED):
        clear = ~widened(mask, 5)
        if clear[ring].mean() < 0.3:
            break
        ground = ground + _local_shade(picture - ground, clear)
        mask = _find_object(picture - ground, ring & clear, weak)
    return Separated(ground.clip(0, 255), mask, plain)


def border_ring(shape: tuple[int, ...]) -> np.ndarray:
    """Return which pixels of (h, w) are taken for the border."""
    return outer_lines(shape, max(1, round(RING * min(shape))))


def outer_lines(shape: tuple[int, ...], wide: int) -> np.ndarray:
    """Return the frame of so many pixels of (h, w)."""
    found = np.ones(shape, bool)
    found[wide:-wide, wide:-wide] = False
    return found


def _fit_surface(picture: np.ndarray) -> np.ndarray:
    """Fit a quadratic surface to each colour, first of the border, then of all pixels that are near the surface."""
    terms = _quadratic_terms(picture.shape[:2])
    step = -(-max(picture.shape[:2]) // FITTED)
    few, their_terms = picture[::step, ::step], terms[::step, ::step]
    ring = border_ring(few.shape[:2])
    chosen, surface = ring, np.zeros((6, picture.shape[2]), np.float32)
    surface[0] = np.median(few[ring], axis=0)
    for turn in range(6):
        away = np.abs(few - their_terms @ surface).max(axis=2)
        near = max(6.0, 2.5 * float(np.median(away[chosen])))
        chosen = (away <= near) & (ring | (turn >= 3))
        inside = their_terms[chosen]
        stiff = np.diag([0, 1, 1, 1, 1, 1]) * (1e-3 if turn < 3 else 1e-6) * len(inside)  # tiny pictures fix no slope
        surface = np.linalg.lstsq(inside.T @ inside + stiff, inside.T @ few[chosen], rcond=None)[0]
    return (terms @ surface).astype(np.float32)


def _quadratic_terms(shape: tuple[int, ...]) -> np.ndarray:
    y, x = np.meshgrid(*(np.linspace(-1, 1, edge, dtype=np.float32) for edge in shape), indexing="ij")
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=2)


def _best_stripes(rest: np.ndarray) -> np.ndarray:
    """Return the stripes, down or across, in what a surface leaves; zeros unless they explain enough of it."""
    both = _stripes_down(rest), _stripes_down(rest.transpose(1, 0, 2)).transpose(1, 0, 2)
    left = [float(np.median(np.abs(rest - one).max(axis=2))) for one in both]
    enough = min(left) <= STRIPED * float(np.median(np.abs(rest).max(axis=2)))
    return both[int(np.argmin(left))] if enough else np.zeros_like(rest)


def _stripes_down(rest: np.ndarray) -> np.ndarray:
    """Return stripes that join the top of (h, w, 3) to its bottom, slanted so that the two ends fit best."""
    height, width = rest.shape[:2]
    end = max(1, height // 16)
    top, bottom = np.median(rest[:end], axis=0), np.median(rest[-end:], axis=0)

    def misfit(shift: int) -> float:
        ends = top[max(0, -shift) : width - max(0, shift)], bottom[max(0, shift) : width + min(0, shift)]
        return float(np.median(np.abs(ends[0] - ends[1]))) * (1 + abs(shift) / width)

    shift = min(range(-(width // 8), width // 8 + 1), key=misfit)
    down = np.linspace(0, 1, height)[:, None]
    at_top, at_bottom = (np.arange(width) - shift * part for part in (down, down - 1))
    share = np.where((at_top < 0) | (at_top > width - 1), 1, down)
    share = np.where((at_bottom < 0) | (at_bottom > width - 1), 0, share)[..., None]
    top, bottom = (end[np.rint(at).astype(int).clip(0, width - 1)] for end, at in ((top, at_top), (bottom, at_bottom)))
    return (top * (1 - share) + bottom * share).astype(np.float32)


def _local_shade(rest: np.ndarray, clear: np.ndarray) -> np.ndarray:
    """Return the smooth part of what the clear pixels show, which fades to zero where none are near."""
    from PIL.Image import Resampling, fromarray

    height, width = clear.shape
    cells = tuple(max(2, round(CELLS * edge / max(height, width))) for edge in (width, height))
    weights = np.asarray(fromarray(clear.astype(np.float32)).resize(cells, Resampling.BOX))
    shades = []
    for channel in np.moveaxis(rest * clear[..., None], 2, 0):
        sums = np.asarray(fromarray(np.ascontiguousarray(channel)).resize(cells, Resampling.BOX))
        shades.append(np.asarray(fromarray(sums / (weights + 0.1)).resize((width, height), Resampling.BICUBIC)))
    return np.stack(shades, axis=2)


def _find_object(rest: np.ndarray, sample: np.ndarray, weak: float) -> np.ndarray:
    """Return the mask of what differs from the ground more than ``sample``, pixels of the ground, do, without holes."""
    far = _distances(rest, sample)
    mask = (np.abs(rest).max(axis=2) > TOLERANCE) & (far > DEVIATIONS)
    if not mask.any():
        return mask
    without_specks = _filtered(mask, "MedianFilter", 3)
    solid = without_specks & mask
    return _without_holes(_main_parts(mask, far.clip(0, 30) * (solid if solid.any() else mask), weak))


def _distances(rest: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """Return Mahalanobis distances from the ground: what varies in it (its shade more than its hue) counts less."""
    values = rest[sample]
    sizes = np.abs(values).max(axis=1)
    usual = values[sizes <= max(3.0, 3 * float(np.median(sizes)))]
    covariance = usual.T @ usual / len(usual) + 4 * np.eye(3, dtype=np.float32)
    return np.linalg.norm(rest @ np.linalg.cholesky(np.linalg.inv(covariance)), axis=2)


def _main_parts(mask: np.ndarray, weight: np.ndarray, weak: float) -> np.ndarray:
    """Keep the connected parts whose pixels weigh most; those along the border weigh a tenth."""
    numbers = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    parts, at = np.unique(_spread(numbers, mask).ravel(), return_inverse=True)
    weights = np.bincount(at, weight.ravel())
    along_border = np.bincount(at, (mask & border_ring(mask.shape)).ravel()) > 0.1 * np.bincount(at)
    weights *= np.where(along_border, 0.1, 1) * (parts > 0)
    return (weights >= weak * weights.max())[at].reshape(mask.shape) & mask


def _without_holes(mask: np.ndarray) -> np.ndarray:
    outside = _spread((~mask & outer_lines(mask.shape, 1)).astype(np.int64), ~mask)
    return outside == 0


def _spread(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Give the pixels of each connected part of the mask the greatest value in it."""
    while True:
        spread = _spread_along_rows(_spread_along_rows(values, mask).T, mask.T).T
        if np.array_equal(spread, values):
            return values
        values = spread


def _spread_along_rows(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    apart = np.pad(mask, ((0, 0), (0, 1))).ravel()  # a column more keeps the rows' ends apart
    starts = np.flatnonzero(np.diff(apart, prepend=~apart[:1]))
    flat = np.pad(values, ((0, 0), (0, 1))).ravel()
    greatest = np.repeat(np.maximum.reduceat(flat, starts), np.diff(starts, append=flat.size))
    return np.where(apart, greatest, flat).reshape(len(mask), -1)[:, :-1]


def widened(mask: np.ndarray, size: int) -> np.ndarray:
    """Dilate by a square of ``size`` pixels."""
    return _filtered(mask, "MaxFilter", size)


def _filtered(mask: np.ndarray, name: str, size: int) -> np.ndarray:
    from PIL import Image, ImageFilter

    return np.asarray(Image.fromarray(mask.astype(np.uint8)).filter(getattr(ImageFilter, name)(size))) > 0
