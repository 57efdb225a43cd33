"""Separate the object on a picture from its background, called ground: a smooth surface with noise, folds, shadows.

docs/predict.md, "How well it works", gives the measured figures behind the constants.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from app.base.frozen import Frozen

TOLERANCE = 20  # of 255: colours that differ less from the ground belong to it; JPEG noise stays below
RING = 0.04  # of the shorter edge: the width of the border that is taken for ground
DEVIATIONS = 4.5  # of the ground's variation: pixels that differ less belong to it
FEW = 0.03  # of the edge's pixels: fewer that show a shadow or a line may be an object
NOISE, SAME = 2, 1  # of 255: the most median difference of the edge from one colour; of the blurred edge
ROUGH = 4  # of 255: a ground is rough if the border's median difference from a smooth surface is greater
EVEN = 6  # of 255: a ground is not plain if more than 2 % of the blurred border differ more from the surface
LEAST_PART, LEAST_PART_IN_PATTERN = 0.002, 0.2  # of the heaviest connected part: lighter ones are dropped

# The surface: cubic splines through a grid of knots, fitted to averages of blocks.
FITTED = 64  # blocks along the longer edge
KNOTS = 9  # along each edge
STIFF_AT_BORDER, STIFF = 1e-1, 1e-4  # weights of the surface's bending against its squared differences from blocks
NEAR = 3.0  # of 255: blocks that differ less from the surface are ground, if they join ground
MOST_GROWTH_STEPS = 40  # the most steps of growth

# Only where the border is not even. Sizes in pixels; a picture has at most 256 along an edge (preparing.py).
BLUR = 2  # radius: patterns become weaker, objects hardly
LINE = 7  # lines as thin as this, such as seams and creases, are no objects
SHADE, SLOPE, HUE = (0.5, 1.6), 6.0, 12.0  # shadows: brightness ÷ ground's, change a pixel, change of colours
NECK = 9  # shadows are joined with the ground at the border by strips at least as wide
# Share of the squared differences from the ground: if less remains without shadows, they are kept as object.
LEAST_WITHOUT_SHADOWS = 0.4


class SeparatedPicture(Frozen):
    """A picture that is separated into its background (the ground) and its object.

    ground: RGB from 0 to 255 of the ground, also under the object, (h, w, 3) float32. mask: pixels of the object,
    (h, w) bool. plain: whether nearly all of the border follows the smooth ground. rough: whether most of it does
    not.
    """

    ground: np.ndarray
    mask: np.ndarray
    plain: bool
    rough: bool


def separate_object(picture: np.ndarray) -> SeparatedPicture:
    """Separate the object on a picture, (h, w, 3) float32 RGB from 0 to 255, from the background.

    The mask of the object is empty if nothing differs from the background.
    """
    ring = border_mask(picture.shape[:2])
    blurred = _blur(picture)
    ground = np.broadcast_to(np.median(picture[frame_mask(picture.shape[:2], 1)], axis=0), picture.shape)
    mask = _exceeds_tolerance(picture, ground)
    if _has_one_colour_background(mask, picture, blurred, ground):
        return SeparatedPicture(ground, mask, plain=True, rough=False)
    ground = _fit_surface(picture)
    away, blurred_away = (np.abs(one - ground)[ring].max(axis=1) for one in (picture, blurred))
    plain = float(np.quantile(blurred_away, 0.98)) <= EVEN
    if plain:
        mask, weight = _object_mask_and_weight(picture - ground, ring)
        least = LEAST_PART
    else:
        mask, weight = _object_mask_and_weight(blurred - ground, ring)
        mask = _drop_thin_lines(_drop_shadows(mask, blurred, ground, ring))
        mask &= _exceeds_tolerance(picture, ground)  # blurred edges are wider
        least = LEAST_PART_IN_PATTERN
    if mask.any():
        mask = _fill_holes(_keep_heavy_parts(mask, weight, least))
    return SeparatedPicture(ground.clip(0, 255), mask, plain, float(np.median(away)) > ROUGH)


def _exceeds_tolerance(picture: np.ndarray, ground: np.ndarray) -> np.ndarray:
    return _greatest_difference(picture, ground) > TOLERANCE


def _greatest_difference(picture: np.ndarray, other: np.ndarray | int) -> np.ndarray:
    """Return each pixel's greatest difference in any channel, (h, w). (``max`` over the axis is four times slower.)"""
    red, green, blue = np.moveaxis(np.abs(picture - other), 2, 0)
    return np.maximum(np.maximum(red, green), blue)


def _has_one_colour_background(mask: np.ndarray, picture: np.ndarray, blurred: np.ndarray, ground: np.ndarray) -> bool:
    """Return whether the outermost pixels show one colour, apart from noise and objects, but no shadows or lines.

    mask: pixels that differ from the colour, (h, w) bool. blurred: the picture, blurred. ground: the colour, (h, w, 3).
    """
    edge = frame_mask(mask.shape, 1)
    sharp, soft = (float(np.median(np.abs(one - ground)[edge].max(axis=1))) for one in (picture, blurred))
    if sharp > NOISE or min(sharp, soft) > SAME:
        return False
    darker = mask & edge & (picture.sum(axis=2) < ground.sum(axis=2))
    few = FEW * edge.sum()
    if darker.sum() <= few:
        return True
    objects = _drop_thin_lines(mask & ~_shadow_mask(mask, blurred, ground, edge))
    return bool((darker & ~objects).sum() <= few)


def border_mask(shape: tuple[int, ...]) -> np.ndarray:
    """Return a mask, (h, w) bool, of the border of a picture of ``shape`` (h, w), which is taken for background."""
    return frame_mask(shape, max(1, round(RING * min(shape))))


def frame_mask(shape: tuple[int, ...], width: int) -> np.ndarray:
    """Return a mask, (h, w) bool, of the outermost ``width`` pixels on each side of a picture of ``shape`` (h, w)."""
    found = np.ones(shape, bool)
    found[width:-width, width:-width] = False
    return found


def _fit_surface(picture: np.ndarray) -> np.ndarray:
    """Return a surface, (h, w, 3), fitted to the border, then repeatedly to adjoining pixels of nearly its colour."""
    height, width = picture.shape[:2]
    side = -(-max(height, width) // FITTED)
    blocks = _block_means(picture, side)
    starts = [np.arange(0, edge, side) for edge in (height, width)]
    down, across = (
        _bspline_values((at + np.append(at[1:], edge)) / 2 / edge)
        for at, edge in zip(starts, (height, width), strict=True)
    )
    ring = border_mask(blocks.shape[:2])
    chosen, surface = ring, np.broadcast_to(np.median(blocks[ring], axis=0), blocks.shape)
    for step in range(MOST_GROWTH_STEPS):
        away = _greatest_difference(blocks, surface)
        near = away <= max(NEAR, 2.5 * float(np.median(away[chosen])))
        before, chosen = chosen, near & (ring if step < 3 else dilate(chosen, 5))
        if step > 3 and np.array_equal(before, chosen):
            break
        knots = _fit_knots(blocks, chosen, down, across, STIFF_AT_BORDER if step < 3 else STIFF)
        surface = _evaluate_surface(knots, down, across)
    return _evaluate_surface(knots, *(_bspline_values((np.arange(edge) + 0.5) / edge) for edge in (height, width)))


def _block_means(picture: np.ndarray, step: int) -> np.ndarray:
    rows, columns = (np.arange(0, edge, step) for edge in picture.shape[:2])
    sums = np.add.reduceat(np.add.reduceat(picture, rows, axis=0), columns, axis=1)
    counts = (np.diff(at, append=edge) for at, edge in zip((rows, columns), picture.shape, strict=False))
    return sums / np.multiply.outer(*counts)[..., None]


def _bspline_values(at: np.ndarray) -> np.ndarray:
    """Return the values of the cubic B-splines of all knots, (n, KNOTS), at positions ``at``, (n,) from 0 to 1."""
    away = np.abs(at[:, None] * (KNOTS - 3) + 1 - np.arange(KNOTS))
    return np.where(away < 1, 2 / 3 - away**2 + away**3 / 2, (2 - away).clip(0) ** 3 / 6)


def _evaluate_surface(knots: np.ndarray, down: np.ndarray, across: np.ndarray) -> np.ndarray:
    return np.einsum("ya,xb,abc->yxc", down, across, knots, optimize=True).astype(np.float32)


def _fit_knots(
    blocks: np.ndarray, chosen: np.ndarray, down: np.ndarray, across: np.ndarray, stiff: float
) -> np.ndarray:
    """Return the knots, (KNOTS, KNOTS, 3), of a surface fitted to blocks (y, x, 3) by penalised least squares.

    chosen: blocks to fit, (y, x) bool. down, across: values of the splines at the blocks, (y, KNOTS), (x, KNOTS).
    stiff: factor of the penalty (P-splines: Eilers and Marx, 1996). The terms of a block are products of one spline
    down and one across, so two small products sum those of all blocks (Currie, Durbán and Eilers, 2006).
    """
    weight = chosen / chosen.sum()
    pairs_down, pairs_across = ((at[:, :, None] * at[:, None, :]).reshape(len(at), -1) for at in (down, across))
    sums = (pairs_down.T @ weight @ pairs_across).reshape((KNOTS,) * 4).swapaxes(1, 2)
    normal = sums.reshape(KNOTS**2, KNOTS**2) + stiff * _bending_energy()
    wanted = np.einsum("ya,xb,yxc->abc", down, across, weight[..., None] * blocks, optimize=True)
    return np.linalg.solve(normal, wanted.reshape(KNOTS**2, -1)).reshape(KNOTS, KNOTS, -1)


@cache
def _bending_energy() -> np.ndarray:
    """Return the quadratic form that measures a surface's curvature by its knots, (KNOTS², KNOTS²).

    It includes a little of the slope, which makes the fit of tiny pictures unique.
    """
    level, slope, curve = (part.T @ part for part in (np.diff(np.eye(KNOTS), order, axis=0) for order in range(3)))
    curvature = np.kron(curve, level) + 2 * np.kron(slope, slope) + np.kron(level, curve)
    return curvature + 1e-3 * (np.kron(slope, level) + np.kron(level, slope))


def _object_mask_and_weight(rest: np.ndarray, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a mask of pixels further from the ground than the sample, (h, w) bool, and weights, (h, w) float32.

    rest: differences from the ground, (h, w, 3). sample: mask of pixels of the ground, (h, w) bool.
    """
    far = _mahalanobis_distances(rest, sample)
    mask = (_greatest_difference(rest, 0) > TOLERANCE) & (far > DEVIATIONS)
    solid = _drop_specks(mask)  # specks have no weight
    return mask, far.clip(0, 30) * (solid if solid.any() else mask)


def _drop_shadows(mask: np.ndarray, picture: np.ndarray, ground: np.ndarray, ring: np.ndarray) -> np.ndarray:
    """Return the mask, (h, w) bool, without shadows and folds of the ground; unchanged if little would remain of it.

    So little would remain, for example, of objects with soft edges. ring: mask of the picture's border, (h, w) bool.
    """
    left = mask & ~_shadow_mask(mask, picture, ground, ring)
    squares = np.square(picture - ground).max(axis=2)
    return left if squares[left].sum() > LEAST_WITHOUT_SHADOWS * squares[mask].sum() else mask


def _shadow_mask(mask: np.ndarray, picture: np.ndarray, ground: np.ndarray, ring: np.ndarray) -> np.ndarray:
    """Return a mask of pixels of the ground's hue that are linked to the border, ``ring``, by soft changes of light."""
    brightness = (picture * ground).sum(axis=2) / np.square(ground).sum(axis=2).clip(1)
    same_hue = _greatest_difference(picture, brightness[..., None] * ground) < HUE
    level = brightness * ground.max(axis=2)
    slope = np.hypot(np.diff(level, axis=0, prepend=level[:1]), np.diff(level, axis=1, prepend=level[:, :1]))
    soft = same_hue & (brightness > SHADE[0]) & (brightness < SHADE[1]) & (slope < SLOPE)
    wide = ~dilate(~soft, NECK)
    joined = _spread_maximum((wide & ~mask & ring).astype(np.int64), wide) > 0
    return soft & dilate(joined, NECK)


def _drop_thin_lines(mask: np.ndarray) -> np.ndarray:
    return mask & dilate(~dilate(~mask, LINE), LINE + 2)


def _mahalanobis_distances(rest: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """Return the Mahalanobis distances (h, w) of ``rest`` (h, w, 3), by the covariance of the pixels in ``sample``."""
    values = rest[sample]
    sizes = np.abs(values).max(axis=1)
    usual = values[sizes <= max(3.0, 3 * float(np.median(sizes)))]
    covariance = usual.T @ usual / len(usual) + 4 * np.eye(3, dtype=np.float32)
    return np.linalg.norm(rest @ np.linalg.cholesky(np.linalg.inv(covariance)), axis=2)


def _keep_heavy_parts(mask: np.ndarray, weight: np.ndarray, least: float) -> np.ndarray:
    """Return the mask with only the connected parts that weigh at least ``least`` times as much as the heaviest.

    weight: of each pixel, (h, w). Parts along the border have a tenth of their pixels' weight.
    """
    numbers = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    parts, at = np.unique(_spread_maximum(numbers, mask).ravel(), return_inverse=True)
    weights = np.bincount(at, weight.ravel())
    along_border = np.bincount(at, (mask & border_mask(mask.shape)).ravel()) > 0.1 * np.bincount(at)
    weights *= np.where(along_border, 0.1, 1) * (parts > 0)
    return (weights >= least * weights.max())[at].reshape(mask.shape) & mask


def _fill_holes(mask: np.ndarray) -> np.ndarray:
    outside = _spread_maximum((~mask & frame_mask(mask.shape, 1)).astype(np.int64), ~mask)
    return outside == 0


def _spread_maximum(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return values, (h, w), in which all pixels of a connected part of the mask have the part's greatest value."""
    while True:
        spread = _spread_maximum_along_rows(_spread_maximum_along_rows(values, mask).T, mask.T).T
        if np.array_equal(spread, values):
            return values
        values = spread


def _spread_maximum_along_rows(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    apart = np.pad(mask, ((0, 0), (0, 1))).ravel()  # the added column separates the rows
    starts = np.flatnonzero(np.diff(apart, prepend=~apart[:1]))
    flat = np.pad(values, ((0, 0), (0, 1))).ravel()
    greatest = np.repeat(np.maximum.reduceat(flat, starts), np.diff(starts, append=flat.size))
    return np.where(apart, greatest, flat).reshape(len(mask), -1)[:, :-1]


def _blur(picture: np.ndarray) -> np.ndarray:
    from PIL import Image, ImageFilter

    return np.asarray(Image.fromarray(picture.astype(np.uint8)).filter(ImageFilter.GaussianBlur(BLUR)), np.float32)


def dilate(mask: np.ndarray, size: int) -> np.ndarray:
    """Return a mask, (h, w) bool, dilated by a square of ``size`` x ``size`` pixels. size: odd."""
    for _ in range(2):  # along columns, then along rows
        found = mask.copy()
        for away in range(1, size // 2 + 1):
            found[away:] |= mask[:-away]
            found[:-away] |= mask[away:]
        mask = np.ascontiguousarray(found.T)
    return mask


def _drop_specks(mask: np.ndarray) -> np.ndarray:
    """Return the pixels of the mask, (h, w) bool, whose 3 x 3 neighbourhood lies mostly in the mask."""
    from PIL import Image, ImageFilter

    return np.asarray(Image.fromarray(mask.astype(np.uint8)).filter(ImageFilter.MedianFilter(3))) & mask > 0
