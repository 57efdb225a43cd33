"""Test resizing by both rules: against its definition and other engines, the emulated kernel, refused inputs."""

import hashlib
from itertools import product
from math import prod

import numpy as np
import pytest

from app.base.errors import UserError
from app.kernels.plain_problems import ResizeProblem
from app.kernels.problems import tuning_key
from app.kernels.registry import variants
from app.lab.bench import oracle
from app.lab.bench.tolerance import allowed_errors
from app.layers import Resize, Shape
from app.layers.resize import MAX_SIZE, RULES
from app.network.definitions import FA19
from app.planning.plan import plan
from data_tools.fashion_mnist import open_split
from tests.support import network_oracle
from tests.support.networks_for_tests import random_graph
from tests.support.on_processor import run_row
from tests.support.oracle import run_nodes

CASES: list[tuple[Shape, int]] = [
    *(((1, 28, 28), size) for size in (48, 70, 72, 86)),
    ((3, 7, 9), 13),
    ((2, 9, 7), 4),
    ((1, 5, 5), 5),
    ((1, 1, 4), 3),
    ((2, 6, 3), 1),
    ((1, 1, 1), 9),
]
NAMED = pytest.mark.parametrize(("shape", "size"), CASES, ids=str)
RULED = pytest.mark.parametrize("rule", RULES)
# All 10,000 test images, enlarged by the course's rule: SHA-256 of the bytes in the order N, H, W.
COURSE_IMAGES = {
    86: "ca82d14f733d46568a4dbf94c30071dfe30894cbb3637fb92425063abcf69da4",
    48: "51af895368993b4dd45f865200cab92bb97d119f82cc879d8515c7177131c732",
}


def random_images(shape: Shape, count: int = 2) -> np.ndarray:
    return np.random.default_rng(prod(shape)).integers(0, 256, (count, *shape), dtype=np.uint8)


def resize_images(images: np.ndarray, size: int, rule: str = "edge") -> np.ndarray:
    return Resize("resize", size, rule).reference(images, {})


def make_problem(shape: Shape, size: int, rule: str) -> ResizeProblem:
    channels, height, width = shape
    return ResizeProblem(channels, height, width, size, rule)


@NAMED
@RULED
def test_resizing_equals_its_definition_and_the_benchmark_s_oracle(shape: Shape, size: int, rule: str) -> None:
    """Pixel centres lie at halves. Edges are repeated and halves rounded up, or pixels beyond are 0 and means cut."""
    images, problem = random_images(shape), make_problem(shape, size, rule)
    found = resize_images(images, size, rule)
    np.testing.assert_array_equal(found, network_oracle.resized(images, size, rule), strict=True)
    wanted = oracle.expected_results(problem, images.reshape(2, -1))
    np.testing.assert_array_equal(wanted.exact, found.reshape(2, -1))
    assert not allowed_errors(problem, wanted)[0].any() and oracle.images_within_budget(problem) >= 1


@pytest.mark.grid
@NAMED
@RULED
def test_emulated_kernel_gives_every_byte(shape: Shape, size: int, rule: str) -> None:
    """Every byte is right, and nothing beyond the images is read."""
    (row,) = variants("resize")
    images = random_images(shape, 3)
    (found,) = run_row(row, make_problem(shape, size, rule), images, [])
    np.testing.assert_array_equal(found, resize_images(images, size, rule).ravel())


def test_exact_halves_are_rounded_up() -> None:
    """At 70 x 70 about one mean in a hundred is an exact half, so tests see how these are rounded."""
    pixels, weights, divisor = random_images((28, 28), 1)[0], network_oracle.resize_weights(28, 70, "edge"), 140**2
    sums = weights @ pixels @ weights.T
    halves = sums % divisor == divisor // 2
    assert halves.sum() > 20
    np.testing.assert_array_equal(resize_images(pixels[None, None], 70)[0, 0][halves], sums[halves] // divisor + 1)


def test_rules_differ_at_the_border_and_in_rounding() -> None:
    dark = resize_images(np.full((1, 1, 3, 3), 255, np.uint8), 9, "course")[0, 0]
    # The outermost output lies a third of a pixel beyond the outermost centre, so two thirds of it are white.
    assert (dark[4] == [170, 255, 255, 255, 255, 255, 255, 255, 170]).all() and dark[0, 0] == 255 * 4 // 9
    inner = random_images((1, 28, 28))
    ours, course = (resize_images(inner, 70, rule)[..., 5:-5, 5:-5].astype(int) for rule in RULES)
    assert set(np.unique(ours - course)) == {0, 1}  # rounded or cut


@pytest.mark.fashion_mnist
@pytest.mark.parametrize("size", COURSE_IMAGES)
def test_enlarged_test_images_equal_the_course_s_files(size: int) -> None:
    images, digest = open_split("test").images[:, None], hashlib.sha256()
    for at in range(0, len(images), 500):
        digest.update(resize_images(images[at : at + 500], size, "course").data)
    assert digest.hexdigest() == COURSE_IMAGES[size]


@NAMED
def test_onnx_runtime_agrees_up_to_rounding(shape: Shape, size: int) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    images = random_images(shape)
    sizes = helper.make_tensor("sizes", kinds.INT64, [4], [2, shape[0], size, size])
    node = helper.make_node(
        "Resize", ["x", "", "", "sizes"], ["y"], mode="linear", coordinate_transformation_mode="half_pixel"
    )
    x, y = (helper.make_tensor_value_info(name, kinds.FLOAT, None) for name in "xy")
    (expected,) = run_nodes([node], [x], [y], [sizes], {"x": images.astype(np.float32)})
    assert np.abs(resize_images(images, size) - expected).max() <= 0.5 + 2e-3  # its coordinates are float32


@RULED
def test_constant_images_do_not_change(rule: str) -> None:
    """Constant images stay constant, save that the course's rule darkens the border; white has the greatest sums."""
    for value, size in product((0, 1, 254, 255), (2, 3, 70, MAX_SIZE)):
        found = resize_images(np.full((1, 1, 3, 2), value, np.uint8), size, rule)
        down, across = (-(-size // (2 * length)) * (rule == "course") for length in (3, 2))
        assert (found[..., down : size - down, across : size - across] == value).all(), (value, size)


def test_chunks_and_strides_do_not_matter_and_images_are_kept() -> None:
    images = random_images((2, 9, 7), 6)
    before = images.copy()
    whole = resize_images(images, 20)
    np.testing.assert_array_equal(np.concatenate([resize_images(images[i : i + 1], 20) for i in range(6)]), whole)
    np.testing.assert_array_equal(resize_images(images[::2], 20), whole[::2])
    np.testing.assert_array_equal(images, before)


@pytest.mark.parametrize(
    ("shape", "size", "rule", "needs"),
    [
        ((1, 9, 9), 0, "edge", "size of 1 to"),
        ((1, 9, 9), 1025, "edge", "to 1,024"),
        ((81,), 9, "edge", "C, H, W"),
        ((1, 9, 9), 9, "none", "rule of edge or course, not 'none'"),
    ],
)
def test_wrong_shapes_sizes_and_rules_are_refused(shape: Shape, size: int, rule: str, needs: str) -> None:
    with pytest.raises(UserError, match=rf"layer enlarge \(resize\) got input of shape .*{needs}"):
        Resize("enlarge", size, rule).output_shape(shape)


def test_tuning_keys_name_only_the_course_s_rule() -> None:
    """Keys of the default rule do not name it, so times stored before the rule existed stay valid."""
    problems = [Resize("resize", 9, rule).standalone_problem((2, 3, 4), "uint8", "float32") for rule in RULES]
    assert problems == [ResizeProblem(2, 3, 4, 9, rule) for rule in RULES]
    ours, course = map(tuning_key, problems)  # type: ignore[arg-type]
    assert "rule" not in ours and course == f"{ours} rule=course"


def test_only_bytes_are_enlarged() -> None:
    layer, types = Resize("resize", 9), {"dtype": "float32", "output_dtype": "float32"}
    with pytest.raises(ValueError, match="reads uint8, not float32"):
        layer.reference(np.zeros((1, 1, 3, 3), np.float32), {})
    assert layer.kernel_problem((1, 3, 3), [], bias=False, input_dtype="float32", **types) is None
    assert layer.kernel_problem((1, 3, 3), [layer], bias=False, input_dtype="uint8", **types) is None
    problem = layer.kernel_problem((2, 3, 4), [], bias=False, input_dtype="uint8", **types)
    assert problem == ResizeProblem(2, 3, 4, 9) and problem.flops == layer.flops((2, 3, 4))
    with pytest.raises(UserError, match=r"supports layer resize in fp32 with float32 input"):
        plan(random_graph(FA19), "sm_90a", input_dtype="float32")
