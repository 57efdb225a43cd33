"""Run ``main.py sweep``: time a kernel over a grid of its parameters and store the best point for this card."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from app.base.errors import UserError, choices_hint
from app.base.interrupts import exit_on_interrupt
from app.base.precision import BY_DTYPE
from app.commands.sweep import SweepRequest
from app.cuda import device
from app.drawing import svg
from app.kernels import registry
from app.kernels.problems import Problem
from app.kernels.variant import Variant
from app.lab.bench.cases import SPARSE_FILTERS
from app.lab.sweep.grid import Measure, Target, make_sweep_target, measure_all, parse_settings
from app.lab.sweep.pipeline import sweep_pipeline
from app.lab.sweep.report import as_document, as_text, draw_heat_maps
from app.network.graph import Graph, network_graph
from app.network.pruning import prune_filters
from app.planning import choices, tuning
from app.planning.matching import Choices
from app.planning.plan import plan
from app.terminal.output import publish_report

ASSUMED_ARCH = "sm_90a"  # without a card, to find wrong options before the missing card ends the command


def sweep(request: SweepRequest) -> int:
    """Sweep a kernel, or with ``--pipeline`` the main job. Return 1 if a result was wrong, else 0. Raises UserError."""
    with exit_on_interrupt():
        if request.plot is not None:
            svg.check_chart_folder(request.plot)
        graph = network_graph(request.network)
        request = replace(request, network=graph.network.name)  # the name instead of a file's path
        arch, card = choices.resolve_target(None, default=ASSUMED_ARCH)
        known = tuning.load(card)
    if request.kernel_option is None:
        execution = plan(graph, arch, Choices(request.precision or Choices.precision, tuning=known))
        body = partial(sweep_pipeline, request, graph, execution, card)
    else:
        body = partial(_sweep_layers, request, *find_targets(request, graph, arch, known), card, arch)
    device.require_gpu("a sweep")
    if request.plot is not None:
        svg.create_chart_folder(request.plot)
    with device.translate_gpu_errors():
        return body()


def _sweep_layers(request: SweepRequest, targets: list[Target], notes: list[str], card: str, arch: str) -> int:
    with exit_on_interrupt():
        from app.lab.sweep.on_card import PointTimer
    return run_sweep(request, targets, notes, card, lambda target: PointTimer(target, arch))


def find_targets(
    request: SweepRequest, graph: Graph, arch: str, known: tuning.Tuning
) -> tuple[list[Target], list[str]]:
    """Return a target for each layer to sweep, and notes, such as why a layer is left out. known: tuned settings.

    Raises UserError for unknown names and values, and if no point can run on any layer.
    """
    assert request.kernel_option is not None
    option, name = request.kernel_option
    operation = choices.OPERATIONS[option]
    row = registry.find_variant(operation, name)
    if row is None:
        raise UserError(f"a sweep needs one {operation} kernel, not auto: choose one (see 'kernels')")
    values = parse_settings(request.set or (), row)
    precision = choose_sweep_precision(row, request.precision)
    layers = [step.layer.name for step in graph.steps if step.layer.operation == operation]
    if not layers:
        raise UserError(f"network {graph.network.name} has no {operation} layer: name another with --network")
    if request.layer is not None and request.layer not in layers:
        fault = f"network {graph.network.name} has no {operation} layer '{request.layer}'"
        raise UserError(f"{fault}: {choices_hint(request.layer, layers)}")
    targets: list[Target] = []
    notes = [f"{name} was timed {SPARSE_FILTERS}"] if row.sparse else []
    for layer in layers if request.layer is None else [request.layer]:
        try:
            problem = layer_problem(graph, layer, row, arch, precision, request.fused)
            targets.append(make_sweep_target(layer, problem, row, request.batch, arch, values, known))
        except UserError as error:
            notes.append(f"{layer} left out: {error}")
            refusal = error
            continue
        before = known.measured_result(problem, row, arch)
        if before is not None and before.images > request.batch:
            notes.append(f"{layer} was tuned over {before.images:,} images: fewer do not change 'auto'")
    if not targets:
        raise refusal
    return targets, notes


def choose_sweep_precision(row: Variant, wanted: str | None) -> str:
    """Return the precision in which to sweep a kernel: ``wanted``; if that is None, fp32 or the kernel's first.

    Raises UserError if the kernel does not support ``wanted``; a plan would silently use another kernel.
    """
    offered = [BY_DTYPE[dtype].name for dtype in row.dtypes if dtype in BY_DTYPE]
    if wanted not in (None, *offered):
        raise UserError(
            f"{row.operation} kernel '{row.name}' does not compute in {wanted}, only in {', '.join(offered)}: "
            "change --precision"
        )
    return wanted or (Choices.precision if Choices.precision in offered else offered[0])


def layer_problem(graph: Graph, layer: str, row: Variant, arch: str, precision: str, fused: bool) -> Problem:
    """Return the problem that this kernel computes for a layer: unfused, or fused as in the main job.

    For a kernel for 2:4 sparse filters, the layer's filters are pruned. Raises UserError if the layer is fused into the
    kernel of another layer.
    """
    nodes = plan(prune_filters(graph) if row.sparse else graph, arch, Choices(precision, fused, {layer: row})).nodes
    for node in nodes:
        if node.head.name == layer:
            return node.problem
    within = next(node.name for node in nodes if layer in [part.name for part in node.layers])
    raise UserError(f"layer {layer} is not a kernel of its own but part of {within}: leave --fused out")


def run_sweep(
    request: SweepRequest,
    targets: list[Target],
    notes: list[str],
    card: str,
    measuring: Callable[[Target], AbstractContextManager[Measure]],
) -> int:
    """Measure all points, store the best of each layer, print and draw; return 0, or 1 if a point was wrong.

    measuring: opens a context with the function that measures points. Raises UserError after Ctrl-C or if no point ran.
    """
    tables: list[Path] = []

    def store_best_point(target: Target) -> None:
        if target.points:
            tables.append(tuning.store(card, target.tuned_results()))

    measure_all(targets, measuring, store_best_point)
    report = as_document(request, targets, notes, card, str(tables[-1]) if tables else None)
    finished, total = report["finished"], report["total"]
    if finished:
        publish_report(report, as_text, request.output)
    if request.plot is not None:
        draw_heat_maps(request.plot, request.network, targets)
    if finished < total:
        raise UserError(f"interrupted after {finished} of {total} points: their results are kept")
    if any(target.wrong for target in targets):
        return 1
    if not tables:
        raise UserError(f"no point could run ({targets[0].skipped[-1]['reason']}): try other values")
    return 0
