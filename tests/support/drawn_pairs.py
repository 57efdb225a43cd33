"""List random pairs of convolutions that one kernel may compute: sizes, strides, padding, activations, poolings."""

from dataclasses import replace

from app.kernels.plain_problems import ResizeProblem
from app.kernels.problems import ConvPairProblem, ConvProblem

Half = tuple[int, int, int, int, str, str, bool]  # maps, kernel, stride, padding, activation, pooling, bias
Source = tuple[int, int, str]  # height and width of images that are enlarged first, and by which rule

_DRAWN: list[tuple[tuple[int, int, int], Half, Half, Source | None]] = [
    ((1, 20, 23), (1, 3, 1, 0, "", "", False), (1, 3, 1, 0, "", "", True), None),
    ((3, 19, 22), (5, 5, 1, 0, "relu", "max2", True), (17, 3, 1, 0, "relu", "", False), None),
    ((1, 31, 26), (2, 7, 2, 3, "tanh", "", True), (33, 4, 1, 1, "tanh", "avg2", True), None),
    ((3, 33, 30), (16, 6, 1, 0, "sigmoid", "avg3", False), (8, 2, 1, 0, "sigmoid", "max2 ceil", False), None),
    ((1, 40, 37), (31, 4, 3, 2, "relu", "", True), (3, 7, 2, 3, "", "", False), None),
    ((1, 18, 25), (64, 1, 1, 0, "relu", "max2", False), (12, 5, 1, 2, "relu", "avg3 ceil", True), None),
    ((3, 30, 41), (12, 2, 2, 1, "", "avg2 ceil", True), (63, 3, 1, 0, "tanh", "", False), None),
    ((1, 45, 38), (3, 7, 1, 6, "tanh", "max4 ceil", False), (5, 6, 1, 0, "relu", "max2", True), None),
    ((1, 26, 29), (32, 3, 2, 1, "relu", "avg2", True), (64, 1, 1, 0, "", "avg2 ceil", False), None),
    ((3, 50, 50), (24, 5, 3, 0, "tanh", "", True), (16, 3, 2, 1, "sigmoid", "avg3 ceil", False), (11, 17, "edge")),
    ((1, 44, 44), (7, 6, 2, 0, "sigmoid", "max3", True), (40, 2, 1, 1, "relu", "max2", False), (28, 21, "course")),
    ((3, 39, 39), (1, 4, 1, 3, "relu", "avg4 ceil", True), (48, 7, 1, 5, "tanh", "", True), (30, 45, "course")),
    ((1, 36, 36), (48, 2, 1, 1, "relu", "max2", False), (9, 3, 3, 0, "", "", True), (9, 50, "edge")),
    ((1, 17, 60), (15, 1, 3, 0, "tanh", "", True), (20, 1, 2, 0, "tanh", "", False), None),
    ((1, 60, 17), (64, 3, 1, 1, "relu", "avg4", True), (32, 3, 1, 2, "relu", "max2 ceil", True), None),
    ((3, 29, 24), (63, 3, 2, 2, "sigmoid", "", False), (10, 4, 2, 0, "", "max3", False), None),
    ((1, 70, 52), (6, 7, 3, 0, "", "max3 ceil", True), (56, 3, 1, 2, "sigmoid", "avg2", True), None),
    ((1, 34, 33), (16, 5, 1, 2, "relu", "max3", False), (24, 5, 1, 4, "relu", "max4 ceil", True), None),
    ((3, 32, 35), (13, 3, 1, 1, "tanh", "avg2", True), (27, 3, 1, 1, "sigmoid", "max2", True), None),
    ((1, 21, 90), (10, 2, 3, 1, "relu", "max2 ceil", False), (9, 6, 1, 3, "", "avg3", False), None),
    ((1, 16, 15), (48, 7, 1, 3, "relu", "", True), (20, 5, 1, 0, "tanh", "avg2", False), None),
    ((1, 128, 128), (4, 7, 3, 0, "sigmoid", "avg4", True), (11, 3, 1, 1, "tanh", "max4", False), (28, 28, "edge")),
]

# Whose second convolution fills tiles of 64 maps, 16 channels and 8 pixels: filters that stay and a ring of them, one
# tile of maps and several, rows that fill no tile, steps of two and three.
_TILED: list[tuple[tuple[int, int, int], Half, Half, Source | None]] = [
    ((1, 28, 28), (32, 3, 1, 0, "relu", "max2", True), (64, 3, 1, 0, "relu", "max2", True), None),
    ((1, 28, 28), (32, 3, 1, 0, "relu", "", True), (64, 3, 1, 0, "relu", "max2", True), None),
    ((3, 32, 32), (32, 5, 1, 2, "relu", "max2", True), (64, 5, 1, 2, "relu", "avg2", True), None),
    ((1, 14, 37), (32, 3, 1, 1, "tanh", "avg2 ceil", True), (40, 3, 1, 1, "tanh", "", False), None),
    ((1, 34, 30), (13, 4, 1, 3, "relu", "max3", False), (100, 5, 1, 2, "tanh", "max2 ceil", True), None),
    ((3, 24, 23), (48, 3, 1, 1, "", "", True), (130, 3, 1, 1, "relu", "avg2 ceil", False), None),
    ((1, 58, 58), (33, 3, 1, 1, "sigmoid", "avg2", False), (64, 3, 2, 1, "", "max2 ceil", True), (11, 17, "edge")),
    ((1, 59, 58), (128, 5, 2, 2, "relu", "max2", True), (128, 4, 3, 3, "relu", "", True), None),
    ((1, 17, 25), (64, 1, 1, 0, "relu", "max2", False), (64, 11, 1, 5, "tanh", "", True), None),
    ((3, 9, 12), (16, 2, 1, 0, "tanh", "", True), (100, 7, 1, 0, "relu", "", False), None),
]


def _half(image: tuple[int, int, int], half: Half) -> ConvProblem:
    maps, kernel, stride, padding, activation, pooling, bias = half
    problem = ConvProblem(*image, maps, kernel, stride, bias, activation, padding=padding)
    if not pooling:
        return problem
    window, is_max, ceil = int(pooling[3]), pooling.startswith("max"), pooling.endswith("ceil")
    return replace(problem, pool=window, pool_is_max=is_max, pool_ceil=ceil)


def _pair(image: tuple[int, int, int], one: Half, other: Half, source: Source | None) -> ConvPairProblem:
    first = replace(_half(image, one), input_dtype="uint8")
    second = _half((first.maps, *first.pooled_size), other)
    resize = None if source is None else ResizeProblem(image[0], *source[:2], image[1], source[2])
    return ConvPairProblem(first, second, resize=resize)


DRAWN_PAIRS = [_pair(*row) for row in _DRAWN]
TILED_PAIRS = [_pair(*row) for row in _TILED]
