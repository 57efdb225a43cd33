"""Train on the current GPU with this project's kernels."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import cupy
import numpy as np

from app.cuda.compiler import architecture_name
from app.cuda.device import compute_capability
from app.cuda.memory import device_array, pinned_array, upload
from app.training.checkpoint import TrainingJob
from app.training.gpu.kernels import CrossEntropy, GatherImages, ParameterUpdate, arena_layout, scale_kernel
from app.training.gpu.stages import DeviceBatch, StageContext, build_stages, inference_launch
from app.training.gradients import Arrays
from app.training.model import Model
from app.training.optimisers import Slots, build_optimiser, one_cycle_schedule
from app.training.random_bits import RandomUse, stream_key
from app.training.settings import Settings
from app.training.team import Team, member_share

# Enqueues a batch, or one piece of an evaluation, given its number, the indices of its images and the (2,) float64
# array that receives loss and correct answers.
Work = Callable[[int, Any, Any], None]


class InputStage:
    """Prepares the input of the first trained layer, float32: gathers, augments (in training) and resizes images."""

    def __init__(self, context: StageContext, model: Model, settings: Settings, images: Any) -> None:
        """Compile the kernels. images: the whole training set, uint8 on the device."""
        shape, factor = model.network.input_shape, model.network.pixel_scale
        self.seed, self._images = settings.seed, images
        dtype = "uint8" if model.front else "float32"
        self.y = self._gathered = device_array(context.images * prod(shape), dtype)
        self._plain = GatherImages(context.arch, shape, dtype, factor)
        self._altered = GatherImages(context.arch, shape, dtype, factor, shift=settings.shift, flip=settings.flip)
        self._front = []
        for layer in model.front:
            after = device_array(context.images * prod(layer.output_shape(shape)), dtype)
            self._front.append(inference_launch(context, layer, shape, self.y, after, dtype))
            self.y, shape = after, layer.output_shape(shape)
        self.shape = shape
        self._bytes, self._scale = self.y, None
        if model.front:
            self.y, self._scale = context.allocate_activations(shape), scale_kernel(context.arch, prod(shape), factor)

    def forward(self, batch: DeviceBatch) -> None:
        """Enqueue the input ``y`` for a batch."""
        gather = self._altered if batch.epoch else self._plain
        key = stream_key(self.seed, RandomUse.AUGMENT, epoch=batch.epoch)
        gather(batch.stream, batch.images, self._images, batch.items, self._gathered, key)
        for launch in self._front:
            launch(batch.stream.ptr, batch.images)
        if self._scale is not None:
            self._scale(batch.stream, batch.images, self._bytes, self.y)


class DeviceNetwork:
    """The stages and arrays of the model. images, labels: the whole training set, uint8 on the device."""

    def __init__(self, context: StageContext, model: Model, settings: Settings, images: Any, labels: Any) -> None:
        self._labels = labels
        self._inputs = InputStage(context, model, settings, images)
        self._stages = build_stages(context, model, settings, self._inputs.y, self._inputs.shape)
        self._first = next(place for place, stage in enumerate(self._stages) if stage.has_weights)
        most = max(stage.y.size for stage in self._stages)
        self._slopes = device_array(most, "float32"), device_array(most, "float32")
        self._loss = CrossEntropy(context.arch, model.classes)

    def compute_logits(self, batch: DeviceBatch) -> Any:
        """Enqueue the forward pass; return the array that receives the logits, float32."""
        self._inputs.forward(batch)
        for stage in self._stages:
            stage.forward(batch)
        return self._stages[-1].y

    def forward(self, batch: DeviceBatch, result: Any, *, total: int, smoothing: float, teacher: Any = None) -> None:
        """Enqueue the forward pass and the loss.

        result: (2,) float64; receives the batch's share of the mean loss over ``total`` images, and the number of its
        correct answers. teacher: the teacher's logits, or None.
        """
        arrays = self.compute_logits(batch), teacher, self._labels, batch.items, self._slopes[0], result
        self._loss(batch.stream, batch.images, *arrays, total=total, smoothing=smoothing)

    def backward(self, batch: DeviceBatch) -> None:
        """Enqueue the gradients of all parameters, after ``forward``."""
        slope, spare = self._slopes
        for place in range(len(self._stages) - 1, self._first - 1, -1):
            back = self._stages[place].backward(batch, slope, spare, place > self._first)
            if back is spare:
                slope, spare = spare, slope


class GpuTrainer:
    """Trains on the GPU, with images, labels, parameters and the optimiser's state in device memory.

    team: processes that share each batch. Sums have a fixed order, so results on the same GPU model are bit-identical.
    ``train`` waits for the device once. Raises DeviceMemoryError if the device has too little memory.
    """

    batches_per_call = 8  # so that the device does not wait for the host after each

    def __init__(self, job: TrainingJob, team: Team) -> None:
        settings = job.settings
        self.settings, self._team = settings, team
        self.stream = cupy.cuda.Stream(non_blocking=True)
        arch = architecture_name(*compute_capability())
        self._layout = arena_layout(job.model.shapes)
        self._parameters = upload(self._layout.pack(job.progress.parameters))
        self._gradients = upload(np.zeros(self._layout.size, np.float32))
        optimiser = build_optimiser(settings)
        self._slots = {name: upload(self._layout.pack(job.progress.slots[name])) for name in optimiser.slots}
        self._most = min(settings.batch, len(job.images))
        context = StageContext(arch, self._most, self._layout, self._parameters, self._gradients)
        data = [upload(np.ascontiguousarray(array)) for array in (job.images, job.labels)]
        self._network = DeviceNetwork(context, job.model, settings, *data)
        self._teacher = None
        if job.teacher is not None:
            fixed = StageContext(
                arch, self._most, self._layout, upload(self._layout.pack(job.teacher)), self._gradients
            )
            self._teacher = DeviceNetwork(fixed, job.model, replace(settings, dropout=()), *data)
        self._optimise = ParameterUpdate(arch, self._layout, optimiser, settings.l2)
        self._items, self._staged = device_array(0, "int32"), np.empty(0)
        self._results, self._penalties = device_array(0, "float64"), device_array(0, "float64")

    def train(self, batches: Sequence[np.ndarray], epoch: int, step: int) -> list[tuple[float, int]]:
        """Train on batches of image indices; return each one's loss and correct answers. See ``loop.Trainer.train``."""

        def enqueue_training_batch(number: int, items: Any, result: Any) -> None:
            if items.size:
                batch = DeviceBatch(self.stream, items, items.size, epoch)
                total, smoothing = len(batches[number]), self.settings.smoothing
                teacher = None if self._teacher is None else self._teacher.compute_logits(batch)
                self._network.forward(batch, result, total=total, smoothing=smoothing, teacher=teacher)
                self._network.backward(batch)
            else:
                self._gradients.data.memset_async(0, self._gradients.nbytes, self.stream)
            self._team.all_reduce(self._gradients)
            self._update_parameters(number, step + number)

        found = self._run_batches(batches, enqueue_training_batch)
        penalties = self._penalties[: len(batches)].get() if self.settings.l2 else np.zeros(len(batches))
        return [(loss + float(penalty), correct) for (loss, correct), penalty in zip(found, penalties, strict=True)]

    def _update_parameters(self, number: int, step: int) -> None:
        """Enqueue the update after batch ``number`` of this call of ``train``. step: number of earlier updates."""
        slots, penalty = list(self._slots.values()), self._penalties[number : number + 1]
        schedule = one_cycle_schedule(step, self.settings.steps, self.settings.rate)
        self._optimise(self.stream, self._parameters, self._gradients, slots, penalty, schedule)

    def evaluate(self, items: np.ndarray) -> tuple[float, int]:
        """Return the mean loss and the number of correct answers of the images with the indices ``items``."""

        def enqueue_evaluation_batch(_: int, some: Any, result: Any) -> None:
            if some.size:
                batch = DeviceBatch(self.stream, some, some.size, epoch=0)
                self._network.forward(batch, result, total=len(items), smoothing=0.0)

        pieces = [items[at : at + self._most] for at in range(0, len(items), self._most)]
        losses, correct = zip(*self._run_batches(pieces, enqueue_evaluation_batch), strict=True)
        return sum(losses), sum(correct)

    def _run_batches(self, batches: Sequence[np.ndarray], work: Work) -> list[tuple[float, int]]:
        """Enqueue ``work`` on all batches and wait; return each one's loss and correct answers, summed by the team."""
        shares = [member_share(batch, self._team) for batch in batches]
        indices = np.concatenate(shares)
        if len(indices) > self._items.size:
            self._items = device_array(len(indices), "int32")
            self._staged = pinned_array((len(indices),), np.int32)
        if len(batches) > self._penalties.size:
            self._results, self._penalties = (device_array(n * len(batches), "float64") for n in (2, 1))
        self._staged[: len(indices)] = indices
        results = self._results[: 2 * len(batches)]
        with self.stream:  # the team sums on the current stream
            self._items.data.copy_from_host_async(
                self._staged.ctypes.data, len(indices) * self._staged.itemsize, self.stream
            )
            results.data.memset_async(0, results.nbytes, self.stream)
            at = 0
            for number, share in enumerate(shares):
                work(number, self._items[at : at + len(share)], results[2 * number : 2 * number + 2])
                at += len(share)
            self._team.all_reduce(results)
        self.stream.synchronize()
        return [(float(loss), int(correct)) for loss, correct in results.get().reshape(-1, 2)]

    def state(self) -> tuple[Arrays, Slots]:
        """Return float32 copies of the parameters and of the optimiser's state."""
        self.stream.synchronize()
        slots = {name: self._layout.unpack(arena.get()) for name, arena in self._slots.items()}
        return self._layout.unpack(self._parameters.get()), slots
