"""List convolutions that every kernel of one layer must compute: the networks', and many sizes, strides and shapes."""

from dataclasses import replace

from app.kernels.problems import ConvProblem
from app.layers import ACTIVATIONS, Activation, Conv2d, Layer
from app.layers.pool import Pool
from app.network.definitions import FA19, K7, LENET5, MINIDNN86

EDGES = (1, 2, 3, 5, 17, 33, 70)  # channels, maps, features: off every tile's edge
# Epilogues go round, so that each is met with several sizes.
EPILOGUES = [(bias, function) for function in ("", *ACTIVATIONS) for bias in (False, True)]
SIZES = [(kernel, stride) for kernel in range(1, 8) for stride in (1, 2, 3)]


def network_convolutions(*, fused: bool) -> list[ConvProblem]:
    """Return the convolutions of the four convolutional networks. fused: with the activation and pooling after each."""
    found: list[ConvProblem] = []
    for network in (LENET5, FA19, K7, MINIDNN86):
        shape = network.input_shape
        for at, layer in enumerate(network.layers):
            if isinstance(layer, Conv2d):
                epilogue: list[Layer] = []
                for kind, after in zip((Activation, Pool), network.layers[at + 1 :], strict=False):
                    if not fused or not isinstance(after, kind):
                        break
                    epilogue.append(after)
                types = {"input_dtype": "float32", "dtype": "float32", "output_dtype": "float32"}
                problem = layer.kernel_problem(shape, epilogue, bias=network is MINIDNN86, **types)
                assert problem is not None
                found.append(problem)
            shape = layer.output_shape(shape)
    return found


def _sized(at: int) -> ConvProblem:
    """Return a convolution with the ``at``-th filter size and stride; channels, maps, epilogue, H and W vary, too."""
    (kernel, stride), (bias, function) = SIZES[at], EPILOGUES[at % len(EPILOGUES)]
    short = kernel + 5 + at % 5
    long = short + 1 + 3 * at % 7
    height, width = (short, long) if at % 2 else (long, short)
    maps = EDGES[(3 * at + at // 7 + 2) % len(EDGES)]
    return ConvProblem(EDGES[at % len(EDGES)], height, width, maps, kernel, stride, bias, function)


def _padded(at: int) -> ConvProblem:
    """Return the convolution of ``_sized(at)`` with zero padding of one, half the filter, or the maximum."""
    problem = _sized(at)
    zeros = (1, problem.kernel // 2, problem.kernel - 1)[(at + at // 3) % 3]
    return replace(problem, height=problem.height - zeros, width=problem.width - 1, padding=zeros)


UNPOOLED = [
    *network_convolutions(fused=False),
    *(_sized(at) for at in range(len(SIZES))),
    # One output pixel; more pixels than tiles; more maps than grid y has; longer sums than constant memory holds.
    ConvProblem(1, 7, 7, 1, 7, input_dtype="uint8"),
    ConvProblem(1, 300, 500, 3, 7, 3, input_dtype="uint8"),
    ConvProblem(1, 3, 4, 66_000, 3),
    ConvProblem(700, 8, 9, 40, 5),
    ConvProblem(64, 14, 13, 129, 3, bias=True, activation="relu"),
    *(_padded(at) for at, (kernel, _) in enumerate(SIZES) if kernel > 1),
    # Smaller than the filter; one pixel; bytes; more pixels than tiles; many channels and maps.
    ConvProblem(3, 1, 6, 17, 4, 3, bias=True, padding=3),
    ConvProblem(2, 2, 9, 5, 7, 2, activation="tanh", padding=3),
    ConvProblem(1, 1, 1, 3, 5, padding=2),
    ConvProblem(1, 28, 28, 6, 5, bias=True, activation="tanh", input_dtype="uint8", padding=2),
    ConvProblem(1, 120, 90, 3, 6, 2, input_dtype="uint8", padding=5),
    ConvProblem(33, 13, 10, 70, 3, bias=True, activation="relu", padding=1),
]
POOLED = [
    *(problem for problem in network_convolutions(fused=True) if problem.pool > 1),
    ConvProblem(5, 15, 22, 70, 7, activation="relu", pool=2, pool_is_max=True),
    ConvProblem(4, 33, 31, 65, 2, pool=2),
    ConvProblem(3, 14, 19, 17, 3, 2, bias=True, activation="tanh", pool=2),
    ConvProblem(2, 21, 26, 33, 4, bias=True, activation="relu", pool=4, pool_is_max=True),
    ConvProblem(17, 19, 17, 5, 2, bias=True, pool=4),
    ConvProblem(1, 20, 31, 3, 5, 3, activation="sigmoid", pool=3),
    ConvProblem(2, 9, 8, 1, 1, pool=2),
    ConvProblem(1, 28, 26, 17, 5, activation="relu", pool=2, input_dtype="uint8"),
    # Windows over the border: below, to the right, in the corner; at the end of an image, and of a tile.
    ConvProblem(4, 39, 40, 16, 7, bias=True, activation="relu", pool=4, pool_is_max=True, pool_ceil=True),
    ConvProblem(4, 34, 31, 65, 2, pool=2, pool_ceil=True),
    ConvProblem(3, 14, 20, 17, 3, 2, bias=True, activation="tanh", pool=2, pool_ceil=True),
    ConvProblem(2, 21, 26, 33, 4, bias=True, activation="relu", pool=4, pool_is_max=True, pool_ceil=True),
    ConvProblem(17, 19, 18, 5, 2, bias=True, pool=4, pool_ceil=True),
    ConvProblem(1, 21, 34, 3, 5, 3, activation="sigmoid", pool=3, pool_ceil=True),
    ConvProblem(2, 5, 5, 1, 3, pool=2, pool_ceil=True),
    ConvProblem(1, 28, 27, 17, 5, activation="relu", pool=2, pool_is_max=True, pool_ceil=True, input_dtype="uint8"),
    # Zeros around the image, also with windows over the border.
    ConvProblem(1, 28, 28, 6, 5, bias=True, activation="tanh", pool=2, input_dtype="uint8", padding=2),
    ConvProblem(4, 13, 10, 33, 3, bias=True, activation="relu", pool=2, pool_is_max=True, padding=1),
    ConvProblem(2, 9, 14, 19, 5, 2, pool=3, padding=4),
    ConvProblem(1, 3, 5, 3, 6, activation="sigmoid", pool=4, padding=5),
    ConvProblem(5, 2, 3, 7, 7, 3, bias=True, pool=2, pool_is_max=True, padding=6),
    ConvProblem(1, 4, 6, 5, 4, pool=2, pool_ceil=True, padding=3),
    ConvProblem(2, 7, 9, 19, 5, 2, bias=True, activation="relu", pool=3, pool_is_max=True, pool_ceil=True, padding=3),
]
# More than NumPy computes in a moment: these are compiled, not run.
LARGE = [
    ConvProblem(512, 14, 14, 512, 3, bias=True, activation="relu"),
    ConvProblem(1024, 7, 9, 1000, 1),
    ConvProblem(512, 9, 8, 300, 7),
    ConvProblem(2048, 8, 9, 40, 7),
]

# That fill tiles of 64 maps, 16 channels and 8 pixels: one tile and several, bands of an image, a step of two.
_TILED = [
    ConvProblem(16, 7, 8, 64, 3, activation="relu", pool=2, pool_ceil=True, padding=1),
    ConvProblem(32, 14, 17, 64, 3, bias=True, activation="relu", pool=2, pool_is_max=True, padding=1),
    ConvProblem(45, 9, 22, 70, 5, bias=True, activation="tanh", padding=2),
    ConvProblem(61, 40, 13, 40, 3, 2, activation="relu", pool=2, pool_ceil=True),
    ConvProblem(128, 33, 64, 130, 3, bias=True, activation="sigmoid", padding=1),
]
TILED = [form for one in _TILED for form in (one, replace(one, bounded=True), replace(one, bounded=True, exact=True))]

# With 2:4 sparse filters. A column of taps ends within a step, or with it; stages are whole columns, and parts of one.
_SPARSE = [
    ConvProblem(12, 35, 21, 40, 5, bias=True, activation="tanh", padding=2),
    ConvProblem(32, 12, 12, 64, 5, activation="relu", pool=2),
    ConvProblem(64, 15, 14, 70, 3, 2, bias=True, activation="relu", padding=1),
    ConvProblem(24, 16, 17, 64, 3, activation="leakyrelu", pool=2, pool_is_max=True, pool_ceil=True),
    ConvProblem(4, 9, 24, 33, 7, bias=True),
    ConvProblem(96, 10, 9, 129, 4, 3, activation="sigmoid", padding=3),
    ConvProblem(128, 16, 22, 130, 3, bias=True, activation="relu", pool=2, padding=1),
    ConvProblem(68, 7, 15, 64, 1, activation="relu", pool=2, pool_is_max=True),
    ConvProblem(64, 9, 13, 64, 6, bias=True),
    ConvProblem(12, 9, 10, 64, 3, pool=2, padding=1),
    ConvProblem(12, 10, 10, 64, 5, padding=1),
]
TILED_SIZES = [
    ConvProblem(16, 8 * stride + kernel, 8 * stride + kernel, 64, kernel, stride, sparse=sparse)
    for kernel in range(1, 8)
    for stride in (1, 2, 3)
    for sparse in (False, True)
]
SPARSE = [replace(one, sparse=True, bounded=split, exact=split) for one in _SPARSE for split in (False, True)]
