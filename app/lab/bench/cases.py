"""List the items that ``bench`` times: every layer alone, and with the layers that a kernel may fuse into it."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from app.base.errors import UserError, choices_hint
from app.base.frozen import Frozen
from app.base.precision import OFFERED, SINGLE, epilogue_dtype
from app.cuda.compiler import ARCHITECTURES
from app.kernels import registry
from app.kernels.problems import ConvProblem, Problem, operation
from app.kernels.variant import Variant
from app.layers import Conv2d, Flatten, Layer, Parameters, Shape
from app.network.graph import Graph
from app.network.network import LayerStep
from app.planning.kernel_selection import find_layer_pair
from app.planning.matching import Choices
from app.terminal.console import MAX_BATCH

MATRIX_OPERATIONS = ("conv", "gemm")
SPARSE_FILTERS = "with 2:4 sparse filters"  # note on the time of a variant that computes no others


class Item(Frozen):
    """Layers that one kernel computes together, which ``bench`` times and shows in one table.

    problems: arithmetic type → problem, as the application's plan defines it, so that ``auto`` finds the results; for
    operations other than convolution and matrix product, storage type → problem.
    """

    layers: tuple[Layer, ...]
    in_shape: Shape
    problems: dict[str, Problem]

    @property
    def name(self) -> str:
        """Return the names of the layers, joined: ``conv1+relu1``."""
        return "+".join(layer.name for layer in self.layers)

    @property
    def operation(self) -> str:
        """Return the registry's name of the operation."""
        return operation(next(iter(self.problems.values())))

    @property
    def is_single_convolution(self) -> bool:
        """Return whether the item is a convolution alone."""
        return self.operation == "conv" and len(self.layers) == 1

    def apply_reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Compute all layers by their NumPy references; return the result. Pixel bytes become float32 where needed."""
        for layer in self.layers:
            x = x.astype(np.float32) if x.dtype == np.uint8 and not layer.keeps_bytes else x
            x = layer.reference(x, parameters)
        return x


def network_items(graph: Graph) -> list[Item]:
    """Return the items of a network: single layers, layers fused with the next ones, and pairs of such groups."""
    count = len(graph.steps)
    operations = [at for at, step in enumerate(graph.steps) if step.layer.operation is not None]
    alone = (_fused_layers_item(graph, at, 0) for at in operations)
    fused = (_fused_layers_item(graph, at, taken) for at in operations for taken in range(1, count - at))
    pairs = (_pair_item(graph, at) for at in range(count))
    return [item for item in (*alone, *fused, *pairs) if item.problems]


def _pair_item(graph: Graph, at: int) -> Item:
    """Return the item of two layers and their fused layers, from step ``at`` on, for kernels that compute both."""
    problems: dict[str, Problem] = {}
    taken = 0
    for precision in OFFERED:
        found = find_layer_pair(graph, at, _input_dtype(graph.steps, at, precision.stored), Choices(precision.name))
        if found is None:
            continue
        problem, _, taken = found
        if _has_kernel(problem):
            problems[precision.dtype] = problem
    return Item(tuple(step.layer for step in graph.steps[at : at + taken]), graph.steps[at].in_shape, problems)


def _fused_layers_item(graph: Graph, at: int, taken: int) -> Item:
    """Return the item of the layer of step ``at``, fused with the ``taken`` layers after it."""
    step, epilogue = graph.steps[at], [later.layer for later in graph.steps[at + 1 : at + 1 + taken]]
    after = graph.steps[at + 1 + taken :]
    problems: dict[str, Problem] = {}
    for precision in OFFERED:
        stored = precision.stored
        problem = step.layer.kernel_problem(
            step.in_shape,
            epilogue,
            bias=f"{step.layer.name}_bias" in graph.parameters,
            input_dtype=_input_dtype(graph.steps, at, stored),
            dtype=precision.dtype,
            output_dtype=stored if _has_matrix_operation(after) else epilogue_dtype(stored),
        )
        if problem is not None and problem not in problems.values() and _has_kernel(problem):
            problems[problem.dtype] = problem
    return Item((step.layer, *epilogue), step.in_shape, problems)


def _has_kernel(problem: Problem) -> bool:
    """Return whether a kernel can compute the problem on some architecture."""
    rows = registry.variants(operation(problem))
    return any(row.refusal_reason(problem, arch) is None for row in rows for arch in ARCHITECTURES)


def _has_matrix_operation(steps: Sequence[LayerStep]) -> bool:
    return any(step.layer.operation in MATRIX_OPERATIONS for step in steps)


def _input_dtype(steps: Sequence[LayerStep], at: int, stored: str) -> str:
    """Return the dtype of the input of step ``at``. stored: dtype of activations between layers.

    Images are bytes. Scores after the last matrix product are never stored in half precision.
    """
    if all(isinstance(step.layer, Flatten) or step.layer.keeps_bytes for step in steps[:at]):
        return "uint8"
    return stored if _has_matrix_operation(steps[at:]) else epilogue_dtype(stored)


def parse_shape_items(text: str) -> list[Item]:
    """Return the item of one convolution, given ``C,H,W,M,K,S``. Raises UserError."""
    try:
        channels, height, width, maps, kernel, stride = sizes = [*map(int, text.split(","))]
    except ValueError:
        raise UserError(f"--shape {text}: give six whole numbers C,H,W,M,K,S, e.g. 12,33,33,24,5,1") from None
    if min(sizes) < 1 or kernel > min(height, width):
        raise UserError(f"--shape {text}: all must be at least 1, and K at most H and W")
    problem = ConvProblem(channels, height, width, maps, kernel, stride)
    problems: dict[str, Problem] = {
        row.dtype: replace(problem, input_dtype=row.stored, dtype=row.dtype, output_dtype=row.stored) for row in SINGLE
    }
    return [Item((Conv2d("conv", maps, kernel, stride),), (channels, height, width), problems)]


def parse_batch_sizes(options_batch: int, text: str | None) -> list[int]:
    """Return the batch sizes in ``text``, as in ``10,100``, ascending; [options_batch] for None. Raises UserError."""
    if text is None:
        return [options_batch]
    try:
        sizes = sorted({*map(int, text.split(","))})
    except ValueError:
        raise UserError(f"--batches {text}: give whole numbers, e.g. 100,1000,5000,10000") from None
    if not 1 <= sizes[0] <= sizes[-1] <= MAX_BATCH:
        raise UserError(f"--batches {text}: sizes must be between 1 and {MAX_BATCH:,}")
    return sizes


def parse_variant_names(only: str | None) -> set[str] | None:
    """Return the names of variants in ``--only``; None for all variants. Raises UserError for an unknown name."""
    if only is None:
        return None
    known = {row.name for row in registry.VARIANTS}
    names = set(only.split(","))
    unknown = sorted(names - known)
    if unknown:
        raise UserError(f"--only: unknown kernel '{unknown[0]}': {choices_hint(unknown[0], sorted(known))}")
    return names


def item_variants(item: Item, only: set[str] | None, mine: Variant | None = None) -> list[tuple[Problem, Variant]]:
    """Return the (problem, variant) pairs of an item's table: by type, then in the order of the ladder.

    only: names of variants, None for all. mine: the row of a user's kernel, which comes last.
    """
    rows = [row for row in registry.variants(item.operation) if only is None or row.name in only]
    rows += [mine] if mine is not None and mine.operation == item.operation else []
    return [
        (registry.served_form(row, problem), row)
        for problem in item.problems.values()
        for row in rows
        if problem.dtype in row.dtypes
    ]


def reference_weights(item: Item, graph: Graph | None) -> Parameters:
    """Return parameters for the item's NumPy reference: the graph's, or for None random weights without bias."""
    if graph is not None:
        return graph.parameters
    rng = np.random.default_rng(0)
    return {
        name: (rng.standard_normal(shape) / np.sqrt(max(prod(shape[:-1]), 1))).astype(np.float32)
        for layer in item.layers
        for name, shape in layer.parameter_shapes(item.in_shape).items()
        if not name.endswith("_bias")
    }
