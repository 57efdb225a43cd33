"""The loss: softmax with cross-entropy against smoothed labels, and the L2 penalty of the weights."""

from collections.abc import Mapping

import numpy as np


def cross_entropy(logits: np.ndarray, labels: np.ndarray, smoothing: float, total: int) -> tuple[float, np.ndarray]:
    """The loss -Σ_b Σ_k t[b,k] log softmax(logits)[b,k] / total and its gradient by the logits, (B, classes).

    t: 1 - smoothing for the label, plus smoothing / classes for every class; labels: (B,) integers; total: images of
    the whole batch, of which these may be a share.
    """
    count, classes = logits.shape
    with np.errstate(invalid="ignore"):  # infinity - infinity: the loss becomes NaN, which the loop notices
        shifted = logits - logits.max(axis=1, keepdims=True)
        exponentials = np.exp(shifted)
        sums = exponentials.sum(axis=1, keepdims=True)
        target = np.full_like(logits, smoothing / classes)
        target[np.arange(count), labels] += 1 - smoothing
        loss = -float(((shifted - np.log(sums)) * target).sum(dtype=np.float64)) / total
        return loss, (exponentials / sums - target) / total


def add_l2(parameters: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray], l2: float) -> float:
    """The penalty l2 / 2 · Σ w² over all weights, without biases; adds its gradient to ``gradients``."""
    if l2 == 0:
        return 0.0
    penalty = 0.0
    for name, weight in parameters.items():
        if not name.endswith("_bias"):
            gradients[name][...] += l2 * weight
            penalty += l2 / 2 * float(np.square(weight, dtype=np.float64).sum())
    return penalty
