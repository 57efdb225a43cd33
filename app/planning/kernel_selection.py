"""Find a kernel for the next layers of a plan: one layer and those that can be fused into it, or a pair of layers."""

from dataclasses import replace
from math import prod
from typing import Any, TypeGuard

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.base.precision import BY_NAME, INTEGERS
from app.kernels import registry
from app.kernels.plain_problems import is_two_of_four
from app.kernels.problems import (
    ConvPairProblem,
    ConvProblem,
    LinearPairProblem,
    LinearProblem,
    PairProblem,
    Problem,
    operation,
    without_epilogue,
)
from app.kernels.scaling import (
    FeatureScaling,
    InexactError,
    Scalable,
    fits_float16,
    round_to_tf32,
    scale_features,
    unscale_features,
)
from app.kernels.variant import Variant
from app.layers import Activation, Flatten, Resize
from app.network.graph import Graph
from app.network.network import LayerStep
from app.planning.matching import (
    PAIRS,
    Choices,
    Node,
    fusion_candidates,
    is_split,
    layer_forms,
    pair_forms,
    stored_parameters,
)

# Beyond float16's range both halves are infinite.
UNSCALED = "in fp32x it reads only bytes, and numbers that the kernel before it scaled into float16's range"
NO_INTEGERS = "the weights have no 8-bit filters: run python -m data_tools quantise IN OUT, and name OUT with --weights"
LOSSY = "with these weights it would lose numbers"
Parameters = tuple[np.ndarray | None, ...]


def defer_flattens(graph: Graph) -> Graph:
    """Return the graph with every Flatten moved behind the activations that follow it; the results stay the same.

    Activations accept features in any order. On the GPU, a Flatten exists only as the order of the next weights' rows.
    """
    steps = list(graph.steps)
    for at in range(len(steps) - 1):
        step, after = steps[at : at + 2]
        if isinstance(step.layer, Flatten) and isinstance(after.layer, Activation):
            steps[at : at + 2] = LayerStep(after.layer, step.in_shape, step.in_shape), step
    return replace(graph, steps=tuple(steps))


def is_reordering_flatten(step: LayerStep) -> bool:
    """Return whether a Flatten reorders values in memory, as it does for several maps of several pixels."""
    channels, *pixels = step.in_shape
    return channels > 1 and prod(pixels) > 1


class KernelSelector(Frozen):
    """Selects kernels for a graph's layers on an architecture, by the user's choices."""

    graph: Graph
    arch: str
    choices: Choices

    def select_kernel(self, at: int, input_dtype: str, source: FeatureScaling | None = None) -> Node:
        """Return a node with the kernel for step ``at`` and as many of the next layers as it can fuse.

        source: scales and bounds of its input; None if the input is not scaled. Raises UserError if there is no kernel.
        """
        graph, lead = self.graph, self._count_leading_flattens(at)
        steps = graph.steps[at + lead :]
        head = steps[0].layer
        if head.operation is None or (lead and head.operation != "gemm" and is_reordering_flatten(graph.steps[at])):
            what = f"layer {head.name} reads features in the order of {graph.steps[at].layer.name}"
            remedy = "put one between them, or use --device cpu"
            raise UserError(f"{what}, which the GPU gives to fully connected layers only: {remedy}")
        pair = self._select_pair_kernel(at, input_dtype, source) if self.choices.fuse else None
        if pair is not None:
            return pair
        for candidate, taken in fusion_candidates(graph, steps, input_dtype, self.choices):
            found = self._select_single_kernel(at, steps[0], candidate, input_dtype, source)
            if found is not None:
                problem, row, settings, arrays = found
                own, written = {}, None
                if self._may_scale_results(problem) and (source is not None or problem.input_dtype == "uint8"):
                    arrays, written = self._scale_for_reader(problem, arrays, at + lead + taken, source)
                if isinstance(problem, ConvProblem):
                    own = self.choices.tuning.parameters(without_epilogue(problem), row, self.arch)
                layers = graph.steps[at : at + lead + taken]
                return Node(head, layers, problem, row, settings, arrays, written, settings_alone=own)
        raise UserError(self._unsupported_layer_message(steps[0], input_dtype, source))

    def _count_leading_flattens(self, at: int) -> int:
        """Return 1 if step ``at`` is a Flatten, else 0. It takes no kernel: the next weights are reordered for it."""
        return int(isinstance(self.graph.steps[at].layer, Flatten))

    def _select_pair_kernel(self, at: int, input_dtype: str, source: FeatureScaling | None) -> Node | None:
        """Return a node with a kernel for step ``at`` and the next layer of its kind; None without such a kernel.

        None, too, if the user named a kernel for either layer. A Resize before two convolutions is fused if possible.
        Raises UserError if the kernel named for the pair cannot serve it.
        """
        graph, start = self.graph, at + self._count_leading_flattens(at)
        found = find_layer_pair(graph, start, input_dtype, self.choices)
        if found is None:
            return None
        problem, heads, taken = found
        enlarges = isinstance(problem, ConvPairProblem) and problem.resize is not None
        reads = start + enlarges  # the step of the first convolution
        named = self.choices.named_pair_kernels.get(operation(problem))
        reason = NO_INTEGERS if problem.dtype == INTEGERS and graph.quantised is None else ""
        scale = graph.pixel_scale(np.dtype(input_dtype)) if reads == graph.pixel_scale_step else None
        stored = graph
        if isinstance(problem, ConvPairProblem) and problem.dtype == INTEGERS and graph.quantised is not None:
            folded = graph.quantised.dequantised_parameters(graph.parameters, heads[0].layer.name)
            stored = replace(graph, parameters=folded)
        sparse = self._is_sparse(heads[1], stored)
        for form in pair_forms(problem, scale, integers=graph.quantised is not None, sparse=sparse):
            served = self._choose_kernel(form, named)
            if served is None:
                reason = (
                    f"it {named.refusal_reason(form, self.arch)}; choose another kernel or --precision" if named else ""
                )
                continue
            if isinstance(form, LinearPairProblem) and form.activation_parts == 2 and source is None:
                reason = f"{UNSCALED}; choose another, or --precision fp16"
                continue
            arrays, written = stored_parameters(stored, at + enlarges, heads, form, input_dtype), None
            if isinstance(form, LinearPairProblem):
                arrays = arrays if source is None else unscale_features(arrays, source.scales)
            else:
                arrays, written = self._scale_for_reader(form, arrays, start + taken)
            if not fits_float16(form, arrays):
                reason = f"{LOSSY}; take auto, or a kernel of single layers"
            elif not _weights_fit_float16(form, *served, arrays):
                reason = "float16 does not hold its weights without loss; take auto"
            else:
                return Node(heads[0].layer, graph.steps[at : start + taken], form, *served, arrays, written)
        if named is not None and not enlarges:
            both = "+".join(head.layer.name for head in heads)
            raise UserError(f"kernel {named.name} does not support {both}: {reason}")
        return None

    def _scale_for_reader(
        self, problem: Scalable, arrays: Parameters, after: int, source: FeatureScaling | None = None
    ) -> tuple[Parameters, FeatureScaling | None]:
        """Scale a kernel's parameters so that float16 holds its results, if the kernel at step ``after`` undoes this.

        (Kernels for pairs, and kernels that split their inputs into two float16, do.) Return the parameters, and the
        scaling of the results: None if they are not scaled. source: scaling of the input.
        """
        steps = self.graph.steps[after:]
        if not steps or steps[self._count_leading_flattens(after)].layer.operation not in PAIRS:
            return arrays, None
        scaled, features = scale_features(problem, arrays, source)
        if features is None or not np.isfinite(features.bounds).all():
            return arrays, None
        stored = next(argument.dtype for argument in problem.arguments() if argument.name == "y")
        if BY_NAME[self.choices.precision].dtype == "float16x2":
            node = self.select_kernel(after, stored, features)
            reads = node.problem.dtype == "float16x2" or node.features is not None
        else:
            reader = self._select_pair_kernel(after, stored, features)
            reads = reader is not None and isinstance(reader.problem, LinearPairProblem)
        return (scaled, features) if reads else (arrays, None)

    def _select_single_kernel(
        self, at: int, head: LayerStep, problem: Problem, input_dtype: str, source: FeatureScaling | None
    ) -> tuple[Problem, Variant, dict[str, int], Parameters] | None:
        """Return the first form of the problem that a kernel serves, the kernel, settings, parameters; None if none."""
        named = self.choices.requested_kernel(head.layer)
        arrays: Parameters | None = None
        sparse = isinstance(problem, ConvProblem) and self._is_sparse(head, self.graph)
        for form in layer_forms(problem, source, sparse=sparse):
            served = self._choose_kernel(form, named)
            if served is None:
                continue
            arrays = arrays or stored_parameters(self.graph, at, [head], form, input_dtype)
            given = arrays if source is None else unscale_features(arrays, source.scales)
            if not is_split(form) or (fits_float16(form, given) and _weights_fit_float16(form, *served, given)):
                return form, *served, given
        return None

    def _is_sparse(self, step: LayerStep, stored: Graph) -> bool:
        """Return whether kernels for 2:4 sparse filters may compute the layer. stored: the graph with its weights."""
        return self.choices.sparse and is_two_of_four(stored.parameters[step.layer.name])

    def _choose_kernel(self, form: Problem, named: Variant | None) -> tuple[Variant, dict[str, int]] | None:
        """Return a kernel and its settings; None if there is none, or if it is sparse and a dense one is faster."""
        tuning = self.choices.tuning
        if named is None and isinstance(form, ConvProblem | ConvPairProblem) and form.sparse:
            sparse, dense = (tuning.least_ms_per_image(one) for one in (form, replace(form, sparse=False)))
            if sparse is not None and dense is not None and dense < sparse:
                return None
        return tuning.choose_kernel(form, self.arch, named)

    def _may_scale_results(self, problem: Problem) -> TypeGuard[ConvProblem | LinearProblem]:
        """Return whether a layer's results may be scaled for a later kernel that splits them into float16."""
        split = BY_NAME[self.choices.precision].dtype == "float16x2"
        return split and isinstance(problem, ConvProblem | LinearProblem)

    def _unsupported_layer_message(self, step: LayerStep, input_dtype: str, source: FeatureScaling | None) -> str:
        """Return one line that names the layer and the reason of each kernel that does not support it."""
        layer, named, precision = step.layer, self.choices.requested_kernel(step.layer), self.choices.precision
        alone = replace(self.choices, fuse=False)
        problems = [found for found, _ in fusion_candidates(self.graph, [step], input_dtype, alone)]
        who = named.name if named else "auto"
        what = f"no {layer.operation} kernel ({who}) supports layer {layer.name} in {precision}"
        if not problems:
            return f"{what} with {input_dtype} input: put a convolution or a fully connected layer first"
        rows = [named] if named else registry.variants(layer.operation or "")
        # Reasons of kernels with the type; only if there are none, reasons of kernels with other types.
        able = [(row, problem) for row in rows for problem in problems if problem.dtype in row.dtypes]
        asked = able or [(row, problems[0]) for row in rows]
        otherwise = UNSCALED if source is None else LOSSY  # of a kernel that serves the problem, but not these numbers
        refusals = {row.name: row.refusal_reason(problem, self.arch) or otherwise for row, problem in reversed(asked)}
        reasons = "; ".join(f"{name} {reason}" for name, reason in refusals.items())
        return f"{what} ({reasons}): choose another kernel or --precision"


def _weights_fit_float16(
    form: PairProblem | ConvProblem | LinearProblem, row: Variant, settings: dict[str, int], arrays: Parameters
) -> bool:
    """Return whether float16 holds the packed weights exactly, or the problem does not require it.

    Weights that are not packed are tfloat32, which has as many mantissa bits.
    """
    if not getattr(form, "exact", False):
        return True
    packing = row.launch_config(form, settings).packing
    if packing is None:
        return arrays[0] is not None and bool((round_to_tf32(arrays[0]) == arrays[0]).all())
    try:
        packing.pack(arrays)
    except InexactError:
        return False
    return True


def find_layer_pair(
    graph: Graph, at: int, input_dtype: str, choices: Choices
) -> tuple[PairProblem, tuple[LayerStep, LayerStep], int] | None:
    """Find the joint problem of the layer at step ``at`` and the next of its kind, even if no kernel can solve it.

    Return the problem, both layers' steps and the number of steps covered. A Resize at step ``at`` belongs to the two
    convolutions after it. Return None if no layer of this kind follows, or if the user named a kernel for either.
    """
    first = graph.steps[at]
    if isinstance(first.layer, Resize):
        found = find_layer_pair(graph, at + 1, input_dtype, choices)
        resize = first.layer.standalone_problem(first.in_shape, input_dtype, input_dtype)
        if found is None or resize is None or not isinstance(found[0], ConvPairProblem):
            return None
        return replace(found[0], resize=resize), found[1], found[2] + 1
    steps = graph.steps[at:]
    kind = steps[0].layer.operation or ""
    if kind not in PAIRS:
        return None
    heads: list[LayerStep] = []
    halves: list[Any] = []
    taken, reads = 0, input_dtype
    while len(heads) < 2:
        head = steps[taken] if taken < len(steps) else None
        if head is None or head.layer.operation != kind or choices.requested_kernel(head.layer) is not None:
            return None
        half = next(fusion_candidates(graph, steps[taken:], reads, choices), None)
        if half is None:
            return None
        heads.append(head)
        halves.append(half[0])
        taken, reads = taken + half[1], halves[-1].output_dtype
    return PAIRS[kind](*halves), (heads[0], heads[1]), taken
