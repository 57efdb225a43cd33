"""The gradients of the layers, by layer class: a layer without one cannot be trained.

``forward`` computes as the layer's reference does and keeps what ``backward`` needs; ``backward`` turns the gradient
of the loss by the layer's output into those by its input and by its parameters. All in the float type of x.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.layers import AvgPool, Conv2d, Flatten, Layer, Linear, MaxPool, Parameters
from app.training.gradients import activation, conv2d, flatten, linear, pool

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Gradient:
    """forward(layer, x, parameters) → y, kept; backward(layer, kept, dy, parameters, wanted) → dx, gradients.

    wanted: whether dx is needed, else it is None (the first layer's is not needed); gradients: by the parameters'
    names. ``kept`` may be x or y itself: nobody may write to them before ``backward`` (no forward here does).
    """

    forward: Callable[[Any, np.ndarray, Parameters], tuple[np.ndarray, Any]]
    backward: Callable[[Any, Any, np.ndarray, Parameters, bool], tuple[np.ndarray | None, Arrays]]


GRADIENTS: dict[type[Layer], Gradient] = {
    AvgPool: Gradient(pool.forward, pool.backward_average),
    Conv2d: Gradient(conv2d.forward, conv2d.backward),
    Flatten: Gradient(flatten.forward, flatten.backward),
    Linear: Gradient(linear.forward, linear.backward),
    MaxPool: Gradient(pool.forward, pool.backward_maximum),
    **dict.fromkeys(activation.SLOPES, Gradient(activation.forward, activation.backward)),
}
