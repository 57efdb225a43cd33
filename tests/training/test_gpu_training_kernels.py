"""Test training's kernels on a GPU, each against its NumPy reference, with every element of its output."""

from math import prod
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
import cupy

from app.cuda import memory
from app.layers import ACTIVATIONS, Activation, AvgPool, MaxPool
from app.layers.pool import Pool
from app.training.cpu_trainer import augment_images, dropout_mask
from app.training.gpu.kernels import (
    ColumnSums,
    CrossEntropy,
    Dropout,
    GatherImages,
    ParameterUpdate,
    Transpose,
    activation_gradient_kernel,
    arena_layout,
    pool_gradient_kernel,
    scale_kernel,
)
from app.training.gradients import GRADIENTS
from app.training.model import add_distillation_loss, add_l2_gradient, cross_entropy
from app.training.optimisers import AdamW, Optimiser, ScheduleStep, Sgd
from app.training.random_bits import RandomUse, stream_key
from tests.layers.test_gradients import LAYERS
from tests.support.kernel_cases import architecture
from tests.support.training_device import GUARD, fetched, poisoned
from tests.support.training_for_tests import some_settings

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(5)
FUNCTIONS = [kind("f") for kind in ACTIVATIONS.values()]


def upload(array: np.ndarray) -> Any:
    return memory.upload(np.ascontiguousarray(array))


FACTORS = pytest.mark.parametrize("factor", [1 / 255, 1.0, 3.7e-5])


def null_stream() -> Any:
    return cupy.cuda.Stream.null


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@FACTORS
@pytest.mark.parametrize("output", ["uint8", "float32"])
@pytest.mark.parametrize(
    ("shape", "shift", "flip"),
    [
        ((1, 28, 28), 1, True),
        ((1, 28, 28), 0, False),
        ((3, 7, 9), 2, True),
        ((2, 5, 3), 8, False),
        ((1, 1, 40), 0, True),
    ],
)
def test_gather(shape: tuple[int, int, int], shift: int, flip: bool, output: str, factor: float) -> None:
    """The pixels equal the reference's, scaled with one rounding."""
    images = RNG.integers(0, 256, (50, *shape), np.uint8)
    items = np.array([49, 0, 7, 7, *RNG.integers(0, 50, 19)])
    y = poisoned(len(items) * prod(shape), output)
    key = stream_key(11, RandomUse.AUGMENT, epoch=4)
    gather = GatherImages(architecture(), shape, output, factor, shift=shift, flip=flip)
    gather(null_stream(), len(items), upload(images), upload(items.astype(np.int32)), y, key)
    expected = augment_images(images[items], items, seed=11, epoch=4, shift=shift, flip=flip)
    if output == "float32":
        expected = expected.astype(np.float32) * np.float32(factor)
    np.testing.assert_array_equal(fetched(y, expected.shape), expected)


@FACTORS
def test_scale(factor: float) -> None:
    x = RNG.integers(0, 256, (7, 301), np.uint8)
    y = poisoned(x.size)
    scale_kernel(architecture(), 301, factor)(null_stream(), len(x), upload(x), y)
    np.testing.assert_array_equal(fetched(y, x.shape), x.astype(np.float32) * np.float32(factor))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("part", "share"), [(0, 0.25), (1, 0.5), (2, 0.0)])
def test_dropout(part: int, share: float, in_place: bool) -> None:
    """The mask equals the CPU's, also where NaN or infinity is multiplied by 0."""
    settings = some_settings(dropout=(("a", 0.25), ("b", 0.5), ("c", 0.0)))
    items, x = np.array([40_000, 3, 0, 3, 17]), normal(5, 333)
    x[1, :20], x[2, :20] = np.nan, np.inf
    mask = dropout_mask(settings, "abc"[part], x.shape, items, 2)
    source = upload(np.append(x, np.full(GUARD, 2**32 - 1, np.uint32).view(np.float32)))
    y = source if in_place else poisoned(x.size)
    key = stream_key(settings.seed, RandomUse.DROPOUT, part=part, epoch=2)
    dropout = Dropout(architecture(), x.shape[1])
    dropout(null_stream(), len(x), source, y, upload(items.astype(np.int32)), key, share)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(fetched(y, x.shape), x * mask)


@pytest.mark.parametrize("layer", FUNCTIONS, ids=lambda layer: layer.kind)
def test_activation_gradient(layer: Activation) -> None:
    y, dy = layer.reference(normal(3, 419), {}), normal(3, 419)
    y[0, :5], dy[1, :5], dy[2, :5] = np.nan, np.nan, np.inf
    slope = upload(dy)
    activation_gradient_kernel(architecture(), 419, layer.kind)(null_stream(), 3, upload(y), slope)
    with np.errstate(invalid="ignore"):
        expected, _ = GRADIENTS[type(layer)](layer, y, y, dy, {}, True)
    np.testing.assert_array_equal(slope.get().reshape(dy.shape), expected)


@pytest.mark.parametrize("before", [None, *FUNCTIONS], ids=lambda layer: layer.kind if layer else "none")
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        *((AvgPool("p", window=2), (32, 24, 24)), (MaxPool("p", window=4, ceil=True), (16, 34, 34))),
        *((layer, shape) for layer, shape in LAYERS if isinstance(layer, Pool)),
    ],
    ids=lambda value: value.kind if isinstance(value, Pool) else "x".join(map(str, value)),
)
def test_pool_gradient(layer: Pool, shape: tuple[int, int, int], before: Activation | None) -> None:
    """Every bit equals the reference's, with equal maxima and NaN in a window, and NaN in the output's gradient."""
    x = RNG.integers(-2, 3, (3, *shape)).astype(np.float32) / 4
    x[2, 0, 0, :2] = np.nan
    y = layer.reference(x.copy(), {})
    dy = normal(*y.shape)
    dy[1, 0, 0, 0] = np.nan
    expected, _ = GRADIENTS[type(layer)](layer, x, y, dy, {}, True)
    if before is not None:
        assert expected is not None
        expected, _ = GRADIENTS[type(before)](before, x, x, expected, {}, True)
    dx = poisoned(x.size)
    gradient = pool_gradient_kernel(architecture(), layer, shape, before.problem_name if before else "")
    gradient(null_stream(), len(x), upload(x), upload(y), upload(dy), dx)
    np.testing.assert_array_equal(fetched(dx, x.shape), expected)


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (24, 841), (64, 16), (33, 65), (32, 32), (200, 1)])
def test_transpose(rows: int, columns: int) -> None:
    x = normal(3, rows, columns)
    y = poisoned(x.size)
    Transpose(architecture(), rows, columns)(null_stream(), 3, upload(x), y)
    np.testing.assert_array_equal(fetched(y, (3, columns, rows)), x.transpose(0, 2, 1))


@pytest.mark.parametrize(
    ("images", "columns", "pixels"),
    [(1, 1, 1), (5, 41, 1), (256, 10, 1), (1500, 100, 1), (37, 33, 1), (1, 3, 5), (13, 4, 1000), (70, 16, 50)],
)
def test_column_sums(images: int, columns: int, pixels: int) -> None:
    """The size of the workspace changes no bit; NaN stays in its column."""
    x = normal(images, columns, pixels)
    x[0, columns // 2, 0] = np.nan
    found = []
    for most in (images, images + 3000):
        y = poisoned(columns)
        ColumnSums(architecture(), most, columns, pixels)(null_stream(), images, upload(x), y)
        found.append(fetched(y, (columns,)))
    np.testing.assert_array_equal(found[0], found[1])
    exact, scale = x.sum(axis=(0, 2), dtype=np.float64), np.abs(x).sum(axis=(0, 2), dtype=np.float64)
    assert np.isnan(found[0][columns // 2])
    others = np.arange(columns) != columns // 2
    assert (np.abs(found[0] - exact)[others] <= 1e-6 * scale[others]).all()


def run_cross_entropy(
    logits: np.ndarray, teacher: np.ndarray | None, labels: np.ndarray, items: np.ndarray, total: int, smoothing: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernel's loss and number of correct answers, (2,), and its gradient (images, classes)."""
    slope, result = poisoned(logits.size), poisoned(2, "float64")
    taught = None if teacher is None else upload(teacher)
    arrays = upload(logits), taught, upload(labels), upload(items.astype(np.int32)), slope, result
    images, classes = logits.shape
    CrossEntropy(architecture(), classes)(null_stream(), images, *arrays, total=total, smoothing=smoothing)
    return fetched(result, (2,)), fetched(slope, logits.shape)


@pytest.mark.parametrize(
    ("images", "classes", "smoothing"), [(1, 10, 0.1), (300, 10, 0.0), (77, 3, 0.05), (9, 41, 1.0)]
)
def test_cross_entropy(images: int, classes: int, smoothing: float) -> None:
    logits = 5 * RNG.integers(-3, 4, (images, classes)).astype(np.float32)  # often with several equal maxima
    labels = RNG.integers(0, classes, 500).astype(np.uint8)
    items = RNG.integers(0, 500, images)
    found, slope = run_cross_entropy(logits, None, labels, items, images + 3, smoothing)
    loss, expected = cross_entropy(logits.astype(np.float64), labels[items], smoothing, images + 3)
    assert found[0] == pytest.approx(loss, rel=1e-6) and found[1] == (logits.argmax(axis=1) == labels[items]).sum()
    # A slope is (probability - target) / total. In units of half an ulp, a probability carries the rounding of classes
    # additions, of two exponentials (2 ulp each) and of a division; target, difference and quotient one rounding each.
    target = np.full(expected.shape, smoothing / classes)
    target[np.arange(images), labels[items]] += 1 - smoothing
    roundings = (classes + 9) * (expected * (images + 3) + target) + target + 2 * np.abs(expected) * (images + 3)
    error = np.abs(slope - expected) * (images + 3)
    assert (error <= roundings * 2.0**-24).all()


@pytest.mark.parametrize(("images", "classes"), [(1, 10), (300, 10), (77, 3), (9, 41)])
def test_cross_entropy_with_a_teacher(images: int, classes: int) -> None:
    logits, teacher = normal(images, classes) * 3, normal(images, classes) * 3
    labels, items = RNG.integers(0, classes, 500).astype(np.uint8), RNG.integers(0, 500, images)
    found, slope = run_cross_entropy(logits, teacher, labels, items, images + 3, 0.1)
    own = cross_entropy(logits.astype(np.float64), labels[items], 0.1, images + 3)
    loss, expected = add_distillation_loss(*own, logits.astype(np.float64), teacher.astype(np.float64), images + 3)
    assert found[0] == pytest.approx(loss, rel=1e-5) and found[1] == (logits.argmax(axis=1) == labels[items]).sum()
    # A probability of logits up to 15 carries about 30 roundings, and the temperature doubles it.
    error = np.abs(slope - expected) * (images + 3)
    assert error.max() <= 64 * 2.0**-24 and np.abs(expected - own[1]).max() * (images + 3) > 0.01


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_cross_entropy_of_nan_and_infinity(value: float) -> None:
    """The loss becomes NaN, and so does one row of the gradient."""
    logits = normal(70, 10)
    logits[33, 4] = value
    found, slope = run_cross_entropy(logits, None, np.zeros(70, np.uint8), np.arange(70), 70, 0.1)
    assert np.isnan(found[0])
    assert np.isnan(slope).any(axis=1).nonzero()[0].tolist() == [33]


@pytest.mark.parametrize("l2", [0.0, 0.02])
@pytest.mark.parametrize(
    "optimiser", [Sgd(), Sgd(0.1), AdamW(), AdamW(0.1), Sgd(0.1, keep_zeros=True), AdamW(keep_zeros=True)], ids=repr
)
def test_update(optimiser: Optimiser, l2: float) -> None:
    """Parameters and slots are equal to the bit after some steps, and the L2 loss up to float64's rounding."""
    shapes = {"a_bias": (5,), "a": (33, 19), "b": (3, 3, 2, 7), "b_bias": (7,)}
    places = arena_layout(shapes)
    parameters = {name: normal(*shape) for name, shape in shapes.items()}
    if optimiser.keep_zeros:
        for array in parameters.values():
            array.ravel()[::3] = 0
    slots = {slot: {name: np.abs(normal(*shape)) for name, shape in shapes.items()} for slot in optimiser.slots}
    arena = upload(places.pack(parameters))
    own_slots = [upload(places.pack(slots[slot])) for slot in optimiser.slots]
    penalty, update = upload(np.array([2.5, 7.0])), ParameterUpdate(architecture(), places, optimiser, l2)
    for step in range(1, 4):
        gradients = {name: normal(*shape) for name, shape in shapes.items()}
        schedule = ScheduleStep(step, rate=0.01 * step, momentum=0.9 - 0.01 * step)
        update(null_stream(), arena, upload(places.pack(gradients)), own_slots, penalty, schedule)
        expected = add_l2_gradient(parameters, gradients, l2) if l2 else 2.5
        optimiser.update(parameters, gradients, slots, schedule)
        assert penalty.get().tolist() == [pytest.approx(expected, rel=1e-14), 7.0]
    np.testing.assert_equal(places.unpack(arena.get()), parameters)
    for slot, own in zip(optimiser.slots, own_slots, strict=True):
        np.testing.assert_equal(places.unpack(own.get()), slots[slot])
    assert np.count_nonzero(arena.get()) == sum(map(np.count_nonzero, parameters.values()))  # padding stays 0
    assert optimiser.keep_zeros == (np.count_nonzero(parameters["a"]) < parameters["a"].size)
