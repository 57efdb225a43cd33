"""Test the rule of the course's data files: zeros beyond the border, means cut; and its kernel on the processor."""

import hashlib
from fractions import Fraction
from math import floor, prod

import numpy as np
import pytest

from app.base.errors import UserError
from app.kernels.facts import key
from app.kernels.plain_problems import ResizeProblem
from app.kernels.registry import variants
from app.lab.bench import oracle
from app.ladder.emulation.library import guarded
from app.layers import Resize, Shape
from app.layers.resize import MAX_SIZE, RULES
from data_tools.fashion_mnist import open_split
from tests.support.host_kernels import HostKernel

# All 10,000 test images, enlarged by the course's rule: SHA-256 of the bytes in the order N, H, W.
COURSE_IMAGES = {
    86: "ca82d14f733d46568a4dbf94c30071dfe30894cbb3637fb92425063abcf69da4",
    48: "51af895368993b4dd45f865200cab92bb97d119f82cc879d8515c7177131c732",
}
CASES: list[tuple[Shape, int]] = [
    ((1, 28, 28), 48),
    ((1, 28, 28), 86),
    ((3, 7, 9), 13),
    ((2, 9, 7), 4),
    ((1, 5, 5), 5),
    ((1, 1, 4), 3),
    ((2, 6, 3), 1),
    ((1, 1, 1), 9),
]
NAMED = pytest.mark.parametrize(("shape", "size"), CASES, ids=str)


def images_of(shape: Shape, count: int = 2) -> np.ndarray:
    return np.random.default_rng(prod(shape)).integers(0, 256, (count, *shape), dtype=np.uint8)


def resized(images: np.ndarray, size: int, rule: str = "course") -> np.ndarray:
    return Resize("resize", size, rule).reference(images, {})


def problem_of(shape: Shape, size: int, rule: str) -> ResizeProblem:
    channels, height, width = shape
    return ResizeProblem(channels, height, width, size, rule)


def exact(pixels: np.ndarray, size: int, row: int, column: int) -> Fraction:
    """One output by the definition: half-pixel centres, zeros beyond the image, not cut."""
    places = []
    for at, length in zip((row, column), pixels.shape, strict=True):
        centre = (at + Fraction(1, 2)) * Fraction(length, size) - Fraction(1, 2)
        low = floor(centre)
        around = [(low, 1 - (centre - low)), (low + 1, centre - low)]
        places.append([(place, weight) for place, weight in around if 0 <= place < length])
    return sum((a * b * int(pixels[y, x]) for y, a in places[0] for x, b in places[1]), Fraction(0))


@NAMED
def test_it_is_its_definition_cut(shape: Shape, size: int) -> None:
    images = images_of(shape)
    found = resized(images, size)
    assert (found.dtype, found.shape) == (np.uint8, (2, shape[0], size, size))
    for b, c, row, column in np.ndindex(found.shape):
        if (row * size + column) % 7 == 0 or size < 20:
            assert found[b, c, row, column] == floor(exact(images[b, c], size, row, column))


@pytest.mark.fashion_mnist
@pytest.mark.parametrize("size", COURSE_IMAGES)
def test_the_test_images_are_the_course_s_to_the_bit(size: int) -> None:
    images, digest = open_split("test").images[:, None], hashlib.sha256()
    for at in range(0, len(images), 500):
        digest.update(resized(images[at : at + 500], size).data)
    assert digest.hexdigest() == COURSE_IMAGES[size]


def test_rules_differ_at_the_border_and_in_rounding() -> None:
    white = np.full((1, 1, 3, 3), 255, np.uint8)
    assert (resized(white, 9, "edge") == 255).all()
    dark = resized(white, 9)[0, 0]
    # The outermost output lies a third of a pixel beyond the outermost centre, so two thirds of it are white.
    assert (dark[4] == [170, 255, 255, 255, 255, 255, 255, 255, 170]).all() and dark[0, 0] == 255 * 4 // 9
    inner = images_of((1, 28, 28))
    ours, course = (resized(inner, 70, rule)[..., 5:-5, 5:-5].astype(int) for rule in RULES)
    assert set(np.unique(ours - course)) == {0, 1}  # rounded or cut
    np.testing.assert_array_equal(resized(inner, 28), inner)


def test_the_greatest_sums_fit() -> None:
    white = resized(np.full((1, 1, 3, 2), 255, np.uint8), MAX_SIZE)
    assert (white[0, 0, 200:-200, 300:-300] == 255).all()


def test_rules_are_known_by_name() -> None:
    with pytest.raises(UserError, match=r"layer resize .* needs a rule of edge or course, not 'none'"):
        Resize("resize", 9, "none").output_shape((1, 3, 3))


def test_the_rule_is_a_part_of_the_problem_s_key_only_if_it_is_the_course_s() -> None:
    """Measured times of the other rule stay valid."""
    problems = [Resize("resize", 9, rule).own_problem((2, 3, 4), "uint8", "float32") for rule in RULES]
    assert problems == [ResizeProblem(2, 3, 4, 9, rule) for rule in RULES]
    ours, course = map(key, problems)  # type: ignore[arg-type]
    assert "rule" not in ours and course == f"{ours} rule=course"


@NAMED
def test_the_benchmark_s_oracle_says_the_same(shape: Shape, size: int) -> None:
    images = images_of(shape, 3)
    found = oracle.expected(problem_of(shape, size, "course"), images.reshape(3, -1))
    np.testing.assert_array_equal(found.exact, resized(images, size).reshape(3, -1))


@NAMED
@pytest.mark.parametrize("rule", RULES)
def test_the_kernel_on_the_processor(
    shape: Shape, size: int, rule: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every byte, and no read beyond the images' end."""
    (row,) = variants("resize")
    config = row.config(problem_of(shape, size, rule))
    images = images_of(shape, 3)
    x, y = guarded(images), guarded(np.full((3, shape[0], size, size), 77, np.uint8))
    (launch,) = config.launches
    folder = tmp_path_factory.getbasetemp() / "kernels"
    kernel = HostKernel(folder, row.path, row.entry, config.defines, launch.threads)
    kernel(None, launch.grid(3), x, y, np.int32(3))
    np.testing.assert_array_equal(y, resized(images, size, rule))
