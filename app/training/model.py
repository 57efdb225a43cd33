"""Define a network for training: trainable layers, parameters, the loss and its gradients."""

from collections.abc import Callable, Mapping
from itertools import takewhile
from math import prod, sqrt

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.layers import Argmax, Layer, Parameters, Shape, Softmax
from app.network.definitions import Network
from app.training.gradients import GRADIENTS, Arrays, layer_forward
from app.training.random_bits import RandomUse, random_bits, unit_fractions

# Hinton, Vinyals and Dean, Distilling the Knowledge in a Neural Network, 2015: share of the teacher in the loss.
TEACHING, TEMPERATURE = 0.9, 2.0
# (layer's name, shape of its input) → dropout factors of the input and of its gradient; None: all are 1.
Masks = Callable[[str, tuple[int, ...]], np.ndarray | None]


class Model(Frozen):
    """A trainable network.

    front: the first layers, such as Resize, which have no gradient and process uint8 images. layers: the trained
    layers, up to the logits. shapes: shapes of the parameters, by name.
    """

    network: Network
    front: tuple[Layer, ...]
    layers: tuple[Layer, ...]
    shapes: Mapping[str, Shape]
    classes: int

    def initial_parameters(self, seed: int) -> Arrays:
        """Return initial float32 parameters: weights uniform within ± 1/√(terms of a sum), biases 0."""
        arrays: Arrays = {}
        for part, (name, shape) in enumerate(self.shapes.items()):
            if name.endswith("_bias"):
                arrays[name] = np.zeros(shape, np.float32)
                continue
            bits = random_bits(seed, RandomUse.INITIAL, np.zeros(1, np.int64), prod(shape), part=part)
            bound = 1 / sqrt(prod(shape[:-1]))
            arrays[name] = ((2 * unit_fractions(bits) - 1) * bound).astype(np.float32).reshape(shape)
        return arrays

    def prepare_inputs(self, images: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return uint8 images (B, C, H, W) as the input of the first trained layer, in ``dtype``."""
        for layer in self.front:
            images = layer.reference(images, {})
        return images.astype(dtype) * dtype.type(self.network.pixel_scale)

    def compute_logits(self, parameters: Parameters, images: np.ndarray) -> np.ndarray:
        """Return logits (B, classes) of uint8 images (B, C, H, W) by the references, in the type of the parameters."""
        x = self.prepare_inputs(images, _parameter_dtype(parameters))
        for layer in self.layers:
            x = layer.reference(x, parameters)
        return x

    def compute_gradients(
        self,
        parameters: Parameters,
        images: np.ndarray,
        labels: np.ndarray,
        *,
        smoothing: float,
        total: int,
        masks: Masks | None = None,
        teacher: Parameters | None = None,
    ) -> tuple[float, int, Arrays]:
        """Return loss, number of correct answers and gradients for a share of a batch; shares' sums are the batch's.

        images: (B, C, H, W) uint8. labels: (B,). total: images in the whole batch. masks: returns dropout factors for a
        layer and a shape. teacher: parameters of a network that the loss compares with (see ``add_distillation_loss``).
        """
        x = self.prepare_inputs(images, _parameter_dtype(parameters))
        tape: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []
        for layer in self.layers:
            mask = None if masks is None else masks(layer.name, x.shape)
            if mask is not None:
                x = x * mask.astype(x.dtype, copy=False)
            y = layer_forward(layer, x, parameters)
            tape.append((x, y, mask))
            x = y
        correct = int((x.argmax(axis=1) == labels).sum())
        loss, slope = cross_entropy(x, labels, smoothing, total)
        if teacher is not None:
            loss, slope = add_distillation_loss(loss, slope, x, self.compute_logits(teacher, images), total)
        gradients: Arrays = {}
        first = min(place for place, layer in enumerate(self.layers) if layer.name in parameters)
        for place in range(len(self.layers) - 1, first - 1, -1):
            layer, (x, y, mask) = self.layers[place], tape[place]
            back, own = GRADIENTS[type(layer)](layer, x, y, slope, parameters, place > first)
            gradients.update(own)
            if back is not None:
                slope = back if mask is None else back * mask.astype(back.dtype, copy=False)
        return loss, correct, gradients


def make_training_model(network: Network, biases: tuple[str, ...]) -> Model:
    """Return a network's trainable form. biases: names of layers with one. Raises UserError for untrainable layers."""
    layers = list(network.layers)
    while layers and isinstance(layers[-1], Argmax | Softmax):  # the loss includes a softmax
        layers.pop()
    front = [*takewhile(lambda layer: type(layer) not in GRADIENTS, layers)]
    del layers[: len(front)]
    for layer in layers:
        if type(layer) not in GRADIENTS:
            raise UserError(
                f"network {network.name} cannot be trained: layer {layer.name} ({layer.kind}) has no gradient"
            )
    shape = network.input_shape
    shapes: dict[str, Shape] = {}
    for layer in (*front, *layers):
        for name, wanted in layer.parameter_shapes(shape).items():
            if not name.endswith("_bias") or layer.name in biases:
                shapes[name] = wanted
        shape = layer.output_shape(shape)
    if not shapes or len(shape) != 1:
        raise UserError(f"network {network.name} cannot be trained: it needs weights, and ends in {shape}, not scores")
    return Model(network, tuple(front), tuple(layers), shapes, shape[0])


def cross_entropy(logits: np.ndarray, labels: np.ndarray, smoothing: float, total: int) -> tuple[float, np.ndarray]:
    """Return the loss -Σ_b Σ_k t[b,k] log softmax(logits)[b,k] / total, and its gradient with respect to the logits.

    t: 1 - smoothing for the label, plus smoothing / classes for every class. The gradient is (B, classes). labels: (B,)
    integers. total: images in the whole batch, of which ``logits`` may be a share.
    """
    count, classes = logits.shape
    with np.errstate(invalid="ignore"):  # infinity - infinity: the loss becomes NaN, and the loop reports it
        shifted = logits - logits.max(axis=1, keepdims=True)
        exponentials = np.exp(shifted)
        sums = exponentials.sum(axis=1, keepdims=True)
        target = np.full_like(logits, smoothing / classes)
        target[np.arange(count), labels] += 1 - smoothing
        loss = -float(((shifted - np.log(sums)) * target).sum(dtype=np.float64)) / total
        return loss, (exponentials / sums - target) / total


def add_distillation_loss(
    loss: float, slope: np.ndarray, logits: np.ndarray, teacher: np.ndarray, total: int
) -> tuple[float, np.ndarray]:
    """Return (1 - TEACHING) · loss + TEACHING · distance from a teacher, and the gradient of this sum (B, classes).

    The distance is T² Σ_b KL(softmax(teacher / T) ‖ softmax(logits / T)) / total with T = TEMPERATURE. logits, teacher:
    (B, classes). total: images in the whole batch. slope: gradient of ``loss``, (B, classes).
    """
    wanted, found = (_log_softmax(array / TEMPERATURE) for array in (teacher, logits))
    share = np.exp(wanted)
    distance = TEMPERATURE**2 * float((share * (wanted - found)).sum(dtype=np.float64)) / total
    change = TEMPERATURE * (np.exp(found) - share) / total
    return loss + TEACHING * (distance - loss), slope + TEACHING * (change - slope)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # as in cross_entropy
        shifted = logits - logits.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def add_l2_gradient(parameters: Arrays, gradients: Arrays, l2: float) -> float:
    """Return the L2 loss l2 / 2 · Σ w² over all weights, without biases; add its gradient to ``gradients``."""
    if l2 == 0:
        return 0.0
    penalty = 0.0
    for name, weight in parameters.items():
        if not name.endswith("_bias"):
            gradients[name][...] += l2 * weight
            penalty += l2 / 2 * float(np.square(weight, dtype=np.float64).sum())
    return penalty


def _parameter_dtype(parameters: Parameters) -> np.dtype:
    return next(iter(parameters.values())).dtype
