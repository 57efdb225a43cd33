"""A model on the device: from the indices of images to logits, and back to the gradients of all parameters."""

from math import prod
from typing import Any

from app.cuda.memory import device_array
from app.training.gpu.kernels import CrossEntropy, Gather, scale
from app.training.gpu.stages import Batch, Site, inference_launch, stages
from app.training.model import Model
from app.training.random_bits import Use, stream_key
from app.training.settings import Settings


class Inputs:
    """The input of the first trained layer: images gathered, augmented in training, enlarged, as float32."""

    def __init__(self, site: Site, model: Model, settings: Settings, images: Any) -> None:
        """images: the whole training set, bytes on the device."""
        shape = model.network.input_shape
        self.seed, self._images = settings.seed, images
        dtype = "uint8" if model.front else "float32"
        self.y = self._gathered = device_array(site.images * prod(shape), dtype)
        self._plain = Gather(site.arch, shape, dtype)
        self._altered = Gather(site.arch, shape, dtype, shift=settings.shift, flip=settings.flip)
        self._front = []
        for layer in model.front:
            after = device_array(site.images * prod(layer.output_shape(shape)), dtype)
            self._front.append(inference_launch(site, layer, shape, self.y, after, dtype))
            self.y, shape = after, layer.output_shape(shape)
        self.shape = shape
        self._bytes, self._scale = self.y, None
        if model.front:
            self.y, self._scale = site.activations(shape), scale(site.arch, prod(shape))

    def forward(self, batch: Batch) -> None:
        """Enqueue the input ``y`` for the images of the batch."""
        gather = self._altered if batch.epoch else self._plain
        key = stream_key(self.seed, Use.AUGMENT, epoch=batch.epoch)
        gather(batch.stream, batch.images, self._images, batch.items, self._gathered, key)
        for launch in self._front:
            launch(batch.stream.ptr, batch.images)
        if self._scale is not None:
            self._scale(batch.stream, batch.images, self._bytes, self.y)


class DeviceNetwork:
    """The model's stages and their arrays. images, labels: of the whole training set, uint8 on the device."""

    def __init__(self, site: Site, model: Model, settings: Settings, images: Any, labels: Any) -> None:
        self._labels = labels
        self._inputs = Inputs(site, model, settings, images)
        self._stages = stages(site, model, settings, self._inputs.y, self._inputs.shape)
        self._first = next(place for place, stage in enumerate(self._stages) if stage.has_weights)
        most = max(stage.y.size for stage in self._stages)
        self._slopes = device_array(most, "float32"), device_array(most, "float32")
        self._loss = CrossEntropy(site.arch, model.classes)

    def forward(self, batch: Batch, result: Any, *, total: int, smoothing: float) -> None:
        """Enqueue the forward pass and the loss.

        result: (2,) float64, gets the batch's part of the mean loss of ``total`` images, and its correct answers.
        """
        self._inputs.forward(batch)
        for stage in self._stages:
            stage.forward(batch)
        arrays = self._stages[-1].y, self._labels, batch.items, self._slopes[0], result
        self._loss(batch.stream, batch.images, *arrays, total=total, smoothing=smoothing)

    def backward(self, batch: Batch) -> None:
        """Enqueue the gradients of all parameters, after ``forward``."""
        slope, spare = self._slopes
        for place in range(len(self._stages) - 1, self._first - 1, -1):
            back = self._stages[place].backward(batch, slope, spare, place > self._first)
            if back is spare:
                slope, spare = spare, slope
