"""Fold a batch normalisation into the convolution or product ahead of it, as every reader of foreign models does."""

import numpy as np

from app.base.frozen import Frozen
from app.files.checks import BadValueError

BRIGHT = 1 / 16  # images that are multiplied by less are taken as pixels from 0 to 255, others as from 0 to 1


class BatchNorm(Frozen):
    """What a trained batch normalisation computes: (x - mean) / sqrt(variance + epsilon) * scale + shift.

    Arrays are (maps,) of any float type. name: of the layer or node, for errors.
    """

    name: str
    scale: np.ndarray
    shift: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    epsilon: float

    def affine(self, maps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the factor and the shift of each map, float64.

        Raises BadValueError for sizes that do not fit and a negative variance.
        """
        given = {"scale": self.scale, "shift": self.shift, "mean": self.mean, "variance": self.variance}
        arrays = {what: np.asarray(array, np.float64) for what, array in given.items()}
        for what, array in arrays.items():
            if array.shape != (maps,):
                raise BadValueError(f"batch normalisation {self.name} has a {what} of {array.shape}, needs ({maps},)")
        with np.errstate(all="ignore"):  # infinite and NaN values show in the weights
            if not (arrays["variance"] + self.epsilon > 0).all():
                raise BadValueError(f"batch normalisation {self.name} has a variance that is negative or no number")
            factor = arrays["scale"] / np.sqrt(arrays["variance"] + self.epsilon)
            return factor, arrays["shift"] - arrays["mean"] * factor


def fold_batch_norm(weights: np.ndarray, bias: np.ndarray | None, norm: BatchNorm) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights and the bias that compute both, float32. weights: (…, maps), in this project's layout.

    Computed in float64 and rounded once. Raises BadValueError for sizes that do not fit and a negative variance.
    """
    return fold_affine(weights, bias, *norm.affine(weights.shape[-1]))


def fold_affine(
    weights: np.ndarray, bias: np.ndarray | None, factor: np.ndarray, shift: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights and the bias of a layer whose outputs (…, maps) are multiplied and then shifted, float32.

    Raises BadValueError for a bias of another size.
    """
    if bias is not None and bias.shape != shift.shape:
        raise BadValueError(f"has a bias of {bias.shape} for {len(shift):,} maps; get a fresh copy")
    with np.errstate(all="ignore"):
        shifted = shift if bias is None else bias.astype(np.float64) * factor + shift
        return (weights.astype(np.float64) * factor).astype(np.float32), shifted.astype(np.float32)
