"""Run the forward and backward passes of layers on the device. Arrays are allocated once, for the largest batch.

app/training/gradients.py defines what a stage computes.
"""

from collections.abc import Callable
from math import prod
from typing import Any

from app.base.frozen import Frozen
from app.cuda.memory import device_array
from app.kernels.launch import Kernel, Launch
from app.kernels.registry import eligible_variants
from app.layers import Activation, Conv2d, Flatten, Layer, Linear, Shape
from app.layers.pool import Pool
from app.training.gpu.kernels import (
    ArenaLayout,
    ColumnSums,
    Dropout,
    Transpose,
    activation_gradient_kernel,
    pool_gradient_kernel,
)
from app.training.gpu.products import conv_layer_gemms, linear_layer_gemms
from app.training.model import Model
from app.training.random_bits import RandomUse, stream_key
from app.training.settings import Settings


class StageContext(Frozen):
    """Data that all stages share. images: largest batch size. parameters, gradients: arenas (``ArenaLayout``)."""

    arch: str
    images: int
    layout: ArenaLayout
    parameters: Any
    gradients: Any

    def allocate_activations(self, shape: Shape) -> Any:
        """Return an array for the activations of a batch. shape: for one image."""
        return device_array(self.images * prod(shape), "float32")

    def parameter_views(self, name: str) -> tuple[Any, Any]:
        """Return flat views of a parameter and its gradient; None for both if there is no such parameter."""
        return self.layout.view(self.parameters, name), self.layout.view(self.gradients, name)


class DeviceBatch(Frozen):
    """A batch on a stream. items: image indices, int32 on the device. epoch: 0 for evaluation, without randomness."""

    stream: Any
    items: Any
    images: int
    epoch: int


class Stage(Frozen):
    """A layer, or two layers computed in one pass.

    y: the output. forward: enqueues y from the output of the previous stage. backward(batch, dy, dx, needs_dx):
    enqueues the gradients of the parameters into their arena and, if ``needs_dx``, the gradient with respect to the
    stage's input. It returns the array with the latter gradient: dx, or dy if computed in place.
    """

    y: Any
    forward: Callable[[DeviceBatch], None]
    backward: Callable[[DeviceBatch, Any, Any, bool], Any]
    has_weights: bool = False


def product_stage(
    context: StageContext, layer: Conv2d | Linear, shape: Shape, x: Any, function: str, slope: bool
) -> Stage:
    """Return the stage of a layer with weights, and of the activation after it if ``function`` names one.

    slope: whether the backward pass of this stage applies the activation's slope; otherwise the next stage does.
    """
    out = layer.output_shape(shape)
    y = context.allocate_activations(out)
    w, dw = context.parameter_views(layer.name)
    bias, dbias = context.parameter_views(f"{layer.name}_bias")
    slopes = activation_gradient_kernel(context.arch, prod(out), function) if function and slope else None
    sums = None if bias is None else ColumnSums(context.arch, context.images, out[0], prod(out[1:]))
    if isinstance(layer, Conv2d):
        products = conv_layer_gemms(context.arch, layer, shape, bias is not None, function)
    else:
        products = linear_layer_gemms(context.arch, layer, shape, bias is not None, function)
    forward, to_weights, to_input = products

    def backward(batch: DeviceBatch, dy: Any, dx: Any, needs_dx: bool) -> Any:
        if slopes is not None:
            slopes(batch.stream, batch.images, y, dy)
        if sums is not None:
            sums(batch.stream, batch.images, dy, dbias)
        to_weights(batch.stream, batch.images, x, dy, dw)
        if needs_dx:
            to_input(batch.stream, batch.images, dy, w, dx)
        return dx

    return Stage(y, lambda batch: forward(batch.stream, batch.images, x, w, bias, y), backward, True)


def pool_stage(context: StageContext, layer: Pool, shape: Shape, x: Any, function: str) -> Stage:
    """Return the stage of a pooling. Its backward pass includes the activation before it if ``function`` names one."""
    y = context.allocate_activations(layer.output_shape(shape))
    launch = inference_launch(context, layer, shape, x, y, "float32")
    gradient = pool_gradient_kernel(context.arch, layer, shape, function)

    def backward(batch: DeviceBatch, dy: Any, dx: Any, needs_dx: bool) -> Any:
        gradient(batch.stream, batch.images, x, y, dy, dx)
        return dx

    return Stage(y, lambda batch: launch(batch.stream.ptr, batch.images), backward)


def activation_stage(context: StageContext, layer: Activation, shape: Shape, x: Any, slope: bool) -> Stage:
    """Return the stage of an activation not fused with a product. slope: whether backward applies its slope here."""
    y = context.allocate_activations(shape)
    launch = inference_launch(context, layer, shape, x, y, "float32")
    slopes = activation_gradient_kernel(context.arch, prod(shape), layer.problem_name) if slope else None

    def backward(batch: DeviceBatch, dy: Any, dx: Any, needs_dx: bool) -> Any:
        if slopes is not None:
            slopes(batch.stream, batch.images, y, dy)
        return dy

    return Stage(y, lambda batch: launch(batch.stream.ptr, batch.images), backward)


def flatten_stage(context: StageContext, shape: Shape, x: Any) -> Stage:
    """Return the stage that transposes (C, H, W) to (H, W, C) and back, or does nothing if the order is the same."""
    channels, pixels = shape[0], prod(shape[1:])
    if channels == 1 or pixels == 1:
        return Stage(x, lambda batch: None, lambda batch, dy, dx, needs_dx: dy)
    y = context.allocate_activations(shape)
    there, back = Transpose(context.arch, channels, pixels), Transpose(context.arch, pixels, channels)

    def backward(batch: DeviceBatch, dy: Any, dx: Any, needs_dx: bool) -> Any:
        back(batch.stream, batch.images, dy, dx)
        return dx

    return Stage(y, lambda batch: there(batch.stream, batch.images, x, y), backward)


def dropout_stage(context: StageContext, features: int, x: Any, share: float, seed: int, part: int) -> Stage:
    """Return the stage of the dropout before a layer; in evaluation it copies. part: index in ``Settings.dropout``.

    y has a separate array, because the activation before it still needs its output. backward draws the same mask.
    """
    y = context.allocate_activations((features,))
    function = Dropout(context.arch, features)

    def apply_dropout(batch: DeviceBatch, before: Any, after: Any) -> None:
        key = stream_key(seed, RandomUse.DROPOUT, part=part, epoch=batch.epoch)
        function(batch.stream, batch.images, before, after, batch.items, key, share if batch.epoch else 0.0)

    def backward(batch: DeviceBatch, dy: Any, dx: Any, needs_dx: bool) -> Any:
        apply_dropout(batch, dy, dy)
        return dy

    return Stage(y, lambda batch: apply_dropout(batch, x, y), backward)


def inference_launch(context: StageContext, layer: Layer, shape: Shape, x: Any, y: Any, dtype: str) -> Launch:
    """Return the launch of the inference kernel of a layer without weights; it computes y from x, of type ``dtype``."""
    problem = layer.kernel_problem(shape, (), bias=False, input_dtype=dtype, dtype="float32", output_dtype=dtype)
    assert problem is not None and layer.operation is not None, f"{layer.kind} is a pass of its own"
    variant = next(eligible_variants(layer.operation, problem, context.arch))
    return Kernel(variant, problem, context.arch).bind([x, y], context.images)


def build_stages(context: StageContext, model: Model, settings: Settings, x: Any, shape: Shape) -> list[Stage]:
    """Return one stage per trained layer. Activations join the product before them; dropouts precede their layers.

    x: input of the first layer. shape: its shape for one image. The backward pass of a pooling includes the activation
    before it, which saves a pass over the largest arrays.
    """
    made: list[Stage] = []
    dropouts = {name: (part, share) for part, (name, share) in enumerate(settings.dropout)}
    waiting = list(model.layers)
    before = ""  # the activation directly before, if any
    while waiting:
        layer, inner = waiting.pop(0), shape
        shape = layer.output_shape(shape)
        if layer.name in dropouts:
            part, share = dropouts[layer.name]
            made.append(dropout_stage(context, prod(inner), x, share, settings.seed, part))
            x = made[-1].y
        function = ""
        if isinstance(layer, Activation):
            function = layer.problem_name
        elif isinstance(layer, Conv2d | Linear) and waiting and isinstance(waiting[0], Activation):
            function = waiting[0].problem_name
            waiting.pop(0)
        slope = not (waiting and isinstance(waiting[0], Pool))
        match layer:
            case Conv2d() | Linear():
                made.append(product_stage(context, layer, inner, x, function, slope))
            case Pool():
                made.append(pool_stage(context, layer, inner, x, before))
            case Activation():
                made.append(activation_stage(context, layer, inner, x, slope))
            case Flatten():
                made.append(flatten_stage(context, inner, x))
        x, before = made[-1].y, function
    return made
