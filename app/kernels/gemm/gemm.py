"""Define the registry rows of the matrix products of fully connected layers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from app.base.precision import epilogue_dtype
from app.cuda.compiler import architecture_number
from app.kernels.plain_problems import ITEMSIZE, Argument, max_workspace_images
from app.kernels.problems import LONG_SUM, LinearProblem
from app.kernels.tensor_cores import tf32_split_is_worthwhile
from app.kernels.variant import (
    BLOCK,
    FLOATS,
    STATIC_SHARED_LIMIT,
    STORED,
    Action,
    Grid,
    KernelLaunch,
    LaunchConfig,
    LibraryGemm,
    Packing,
    Parameters,
    Unfit,
    Variant,
    ceil_div,
    configure_elementwise,
    elementwise_grid,
    result_defines,
    type_defines,
)

MOST_IMAGES = 512  # whose partial sums the workspace holds at a time
MOST_CLASSES = 32  # most classes that a fused argmax can compare, within a warp
WARPGROUPS = 90  # the architecture where a warpgroup kernel multiplies the same types
SIDE = 4  # rows and columns of a thread's register tile
TILE_TUNABLES = {"BM": (16, 32, 64, 128), "BN": (16, 32, 64, 128), "BK": (8, 16, 32)}


def argmax_refusal_reason(problem: LinearProblem) -> str | None:
    """Return why a kernel that computes no argmax cannot compute the problem, or None."""
    return "does not take the argmax" if problem.argmax else None


def argmax_limit_reason(problem: LinearProblem) -> str | None:
    """Return why a warp cannot compute the argmax of the outputs, or None."""
    too_many = problem.argmax and problem.outputs > MOST_CLASSES
    return f"fuses argmax over at most {MOST_CLASSES} classes" if too_many else None


def size_defines(problem: LinearProblem) -> dict[str, str | int]:
    """Return the compile-time constants DEPTH and N: numbers of inputs and outputs."""
    return {"DEPTH": problem.inputs, "N": problem.outputs}


def tile_grid(problem: LinearProblem, rows: int, columns: int) -> Callable[[int], Grid]:
    """Return a function from images to a grid: a block per tile of ``rows`` images and ``columns`` outputs."""
    return lambda images: (ceil_div(images, rows), ceil_div(problem.outputs, columns), 1)


def sum_part_define(problem: LinearProblem, parameters: Parameters) -> dict[str, str | int]:
    """Return the constant PART: how many terms are summed before they are added to the total, by default all."""
    return {"PART": min(parameters.get("PART", problem.inputs), problem.inputs)}


def configure_split_sums(
    problem: LinearProblem,
    defines: dict[str, str | int],
    launch: KernelLaunch,
    finish: str,
    packing: Packing | None = None,
) -> LaunchConfig:
    """Return a configuration whose blocks compute parts of the sums, which a second kernel adds.

    launch: of the blocks for one part; PART in ``defines`` is its number of terms. finish: name of the second kernel.
    Raises Unfit for a problem with argmax.
    """
    if problem.argmax:
        raise Unfit("argmax needs whole sums, not parts")
    parts = ceil_div(problem.inputs, int(defines["PART"]))

    def grid(images: int) -> Grid:
        across, down, _ = launch.grid(images)
        return across, down, parts

    workspace = (Argument("parts", "float32", per_image=parts * problem.outputs),)
    adding = KernelLaunch(BLOCK, elementwise_grid(problem.outputs), finish)
    return LaunchConfig(defines, (replace(launch, grid=grid), adding), workspace, MOST_IMAGES, packing)


def _configure_cublas(problem: LinearProblem, _: Parameters) -> LaunchConfig:
    widens, narrows = problem.input_dtype != "float32", problem.output_dtype != "float32"
    workspace: tuple[Argument, ...] = ()
    actions: list[Action] = []
    sizes = (problem.inputs, problem.outputs)
    if widens:
        workspace += (Argument("wide_x", "float32", per_image=problem.inputs),)
        actions.append(KernelLaunch(BLOCK, elementwise_grid(problem.inputs), "gemm_cublas_widen", sizes))
    if narrows:
        workspace += (Argument("product", "float32", per_image=problem.outputs),)
    operands = ("wide_x" if widens else "x", "w", "product" if narrows else "y")
    actions.append(LibraryGemm(*operands, lambda images: (images, problem.outputs, problem.inputs)))
    if narrows or problem.bias or problem.activation:
        actions.append(KernelLaunch(BLOCK, elementwise_grid(problem.outputs), scalars=sizes))
    defines = type_defines(problem) | {"WIDENS": int(widens), "NARROWS": int(narrows)}
    return LaunchConfig(defines, tuple(actions), workspace, max_workspace_images(workspace) if workspace else 0)


def _configure_naive(problem: LinearProblem, _: Parameters) -> LaunchConfig:
    return configure_elementwise(type_defines(problem), problem.outputs, scalars=(problem.inputs, problem.outputs))


def _configure_shared_tiled(problem: LinearProblem, parameters: Parameters) -> LaunchConfig:
    tile = parameters["TILE"]
    launch = KernelLaunch(tile**2, tile_grid(problem, tile, tile), scalars=(problem.inputs, problem.outputs))
    return LaunchConfig(type_defines(problem) | {"TILE": tile}, (launch,))


def _tensor_core_defaults(problem: LinearProblem) -> dict[str, int]:
    # 64 bytes per row; in tfloat32 twice as many, except for long sums, whose totals need the registers.
    wide = problem.dtype == "tfloat32" and problem.inputs < LONG_SUM
    depth = 32 if problem.dtype == "float16" or wide else 16
    if problem.outputs <= 16:
        return {"BM": 64, "BN": 16, "BK": depth, "WM": 16, "WN": 16}
    if problem.outputs <= 32:
        return {"BM": 64, "BN": 32, "BK": depth, "WM": 16, "WN": 32}
    return {"BM": 64, "BN": 64, "BK": depth, "WM": 16 if wide and problem.input_dtype == "uint8" else 32, "WN": 32}


def _configure_tensor_core(problem: LinearProblem, parameters: Parameters) -> LaunchConfig:
    bm, bn, bk, wm, wn = (parameters[name] for name in ("BM", "BN", "BK", "WM", "WN"))
    per_word, parts = 2 if problem.dtype == "float16" else 1, problem.weight_parts
    words = bk // per_word  # 32-bit words along a row of a tile
    if wm % 16 or wn % 8 or bm % wm or bn % wn:
        raise Unfit("a block of these tiles does not consist of whole warps of 16 x 8 products")
    if bk % (8 * per_word):
        raise Unfit("BK is not a multiple of the depth of one mma, 16 in float16, 8 in tfloat32")
    split = problem.dtype == "float16x2"
    if wm * wn * (3 if split else 1) > 64 * 64:
        raise Unfit("a thread would hold more than 128 sums")
    x_parts = 2 if split and problem.input_dtype == "float32" else 1  # other inputs are exact in one tfloat32
    if 2 * (x_parts * bm * (words + 4) + parts * words * (bn + 8)) * 4 > STATIC_SHARED_LIMIT:
        raise Unfit("the two stages exceed 48 KB of shared memory")
    if problem.argmax and not problem.outputs <= bn == wn:
        raise Unfit("argmax needs a whole row of outputs in one warp: WN = BN, no smaller than the row")
    threads = 32 * (bm // wm) * (bn // wn)
    launch = KernelLaunch(threads, tile_grid(problem, bm, bn))
    spread = int("SPREAD" in parameters)
    constants: dict[str, str | int] = {**parameters, "SPREAD": spread, "SPLIT": int(split), "W_PARTS": parts}
    constants |= result_defines(problem) | sum_part_define(problem, parameters)
    defines = type_defines(problem) | size_defines(problem) | constants
    if spread:
        return configure_split_sums(problem, defines, launch, "gemm_tensor_core_finish")
    return LaunchConfig(defines, (launch,))


def _tensor_cores_are_worthwhile(problem: LinearProblem, arch: str) -> bool:
    """Return whether tensor cores beat CUDA cores and, with a softmax, a warpgroup kernel followed by a softmax."""
    warpgroups = architecture_number(arch) == WARPGROUPS and problem.dtype != "tfloat32"
    return tf32_split_is_worthwhile(problem, arch) and not (problem.softmax and warpgroups)


def _split_k_defaults(problem: LinearProblem) -> dict[str, int]:
    return {"BM": 8, "BN": 64, "PART": max(32, ceil_div(problem.inputs, 64))}


def _configure_split_k(problem: LinearProblem, parameters: Parameters) -> LaunchConfig:
    bm, bn = parameters["BM"], parameters["BN"]
    if bn % 32:
        raise Unfit("a block of BN threads does not consist of whole warps")
    launch = KernelLaunch(bn, tile_grid(problem, bm, bn))
    defines = type_defines(problem) | size_defines(problem) | dict(parameters)
    config = configure_split_sums(problem, defines, launch, "gemm_split_k_finish")
    return replace(config, images_at_a_time=max_workspace_images(config.workspace))  # large batches run in chunks


# --- register tiles: from one element per thread to 4 x 4, step by step -----------------------------------------------


def _column_tile_defaults(problem: LinearProblem) -> dict[str, int]:
    return {"BM": 64, "BN": 16 if problem.outputs <= 16 else 32, "BK": 16, "TM": 8}


def _square_tile_defaults(problem: LinearProblem) -> dict[str, int]:
    return {"BM": 64, "BN": 16, "BK": 16} if problem.outputs <= 16 else {"BM": 32, "BN": 32, "BK": 16}


def _tile_launch(problem: LinearProblem, bm: int, bn: int, threads: int, shared_bytes: int) -> KernelLaunch:
    if threads % 32:
        raise Unfit("a block of these tiles does not consist of whole warps")
    if shared_bytes > STATIC_SHARED_LIMIT:
        raise Unfit(f"the tiles take {shared_bytes:,} bytes of shared memory, at most {STATIC_SHARED_LIMIT:,}")
    return KernelLaunch(threads, tile_grid(problem, bm, bn))


def _configure_scalar_tiles(problem: LinearProblem, parameters: Parameters) -> LaunchConfig:
    """Return the configuration for register tiles of TM x 1, or of SIDE x SIDE without TM, with scalar loads."""
    bm, bn, bk = (parameters[name] for name in TILE_TUNABLES)
    tm, tn = (parameters["TM"], 1) if "TM" in parameters else (SIDE, SIDE)
    if bm % tm or bn % tn:
        raise Unfit("a thread's tile does not divide the block's")
    shared = bk * (bm + 4 + bn) * ITEMSIZE[epilogue_dtype(problem.dtype)]
    launch = _tile_launch(problem, bm, bn, bm // tm * (bn // tn), shared)
    return LaunchConfig(
        type_defines(problem) | size_defines(problem) | dict(parameters) | {"TM": tm, "TN": tn}, (launch,)
    )


def _configure_vector_tiles(problem: LinearProblem, parameters: Parameters, stages: int) -> LaunchConfig:
    """Return the configuration for register tiles of SIDE x SIDE, four-float loads and ``stages`` tile buffers."""
    bm, bn, bk = (parameters[name] for name in TILE_TUNABLES)
    threads = bm * bn // SIDE**2
    if bm % SIDE or bn % SIDE or 128 % bn:
        raise Unfit("a block of these tiles does not consist of whole warps, each with whole rows")
    if not threads or bm * bk % threads or bk * bn % threads:
        raise Unfit("threads cannot share the loads of a tile out evenly")
    launch = _tile_launch(problem, bm, bn, threads, stages * bk * (bm + 4 + bn) * ITEMSIZE["float32"])
    constants: dict[str, str | int] = {**parameters, "TM": SIDE, "TN": SIDE}
    return LaunchConfig(type_defines(problem) | size_defines(problem) | constants, (launch,))


def _configure_fused_argmax(problem: LinearProblem, parameters: Parameters) -> LaunchConfig:
    if problem.argmax and problem.outputs > parameters["BN"]:
        raise Unfit("argmax needs a whole row of outputs in one block: BN is too small")
    config = _configure_vector_tiles(problem, parameters, stages=2)
    constants = sum_part_define(problem, parameters) | result_defines(problem)
    return LaunchConfig(config.defines | constants, config.actions)


# With or without argmax. Columns: step, technique, system, configure, dtypes, since.
_plain = partial(Variant, "gemm", refuses=argmax_refusal_reason, limits="no argmax")
_argmax = partial(
    Variant, "gemm", refuses=argmax_limit_reason, limits=f"argmax over at most {MOST_CLASSES} classes", automatic=True
)
_square = partial(_plain, tunables=TILE_TUNABLES, defaults=_square_tile_defaults)
ROWS: tuple[Variant, ...] = (
    _plain(0, "cublas", "the yardstick", _configure_cublas, ("float32",), needs_cublas=True),
    _plain(1, "naive", "mlp, minidnn86", _configure_naive, STORED, automatic=True),
    _plain(
        2,
        "shared_tiled",
        system="lenet5, k7",
        configure=_configure_shared_tiled,
        dtypes=FLOATS,
        since="naive",
        tunables={"TILE": (8, 16, 32)},
        defaults=lambda _: {"TILE": 16},
        automatic=True,
    ),
    _plain(
        3,
        "register_column",
        system="none",
        configure=_configure_scalar_tiles,
        dtypes=FLOATS,
        since="shared-tiled",
        tunables=TILE_TUNABLES | {"TM": (2, 4, 8)},
        defaults=_column_tile_defaults,
    ),
    _square(4, "register_square", "none", _configure_scalar_tiles, FLOATS, "register-column"),
    _square(5, "wide_loads", "none", partial(_configure_vector_tiles, stages=1), ("float32",), "register-square"),
    _argmax(
        6,
        "register_tiled",
        system="lenet5, k7",
        configure=_configure_fused_argmax,
        dtypes=("float32",),
        since="wide-loads",
        tunables=TILE_TUNABLES,
        defaults=_square_tile_defaults,
    ),
    _argmax(
        7,
        "tensor_core",
        system="none",
        configure=_configure_tensor_core,
        dtypes=("float16", "float16x2", "tfloat32"),
        since="register-tiled",
        min_arch=80,
        tunables={"BM": (32, 64, 128), "BN": (16, 32, 64, 128)} | dict.fromkeys(("BK", "WM", "WN"), (16, 32, 64)),
        defaults=_tensor_core_defaults,
        worthwhile=_tensor_cores_are_worthwhile,
        instructions="mma",
    ),
    _plain(
        8,
        "split_k",
        system="none",
        configure=_configure_split_k,
        dtypes=("float32",),
        since="register-column",
        limits="no argmax; another order of summation than the other steps, so only with --latency",
        tunables={"BM": (1, 2, 4, 8), "BN": (32, 64, 128), "PART": (16, 32, 64, 128)},
        defaults=_split_k_defaults,
    ),
)
