"""``main.py sweep``: time a variant over the grid of its parameters, and keep the best point for this card."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from app import figures
from app.bench.graphs import network_graph
from app.bench.sweep import plots
from app.bench.sweep.grid import Measure, Target, make_target, measure_all, parse_settings
from app.bench.sweep.pipeline import sweep_pipeline
from app.bench.sweep.text import as_document, as_text
from app.commands.options.common import output_request
from app.cuda import device
from app.errors import UserError
from app.interrupts import exit_on_interrupt
from app.kernels import registry
from app.kernels.problems import Problem
from app.kernels.variant import Variant
from app.network.graph import Graph
from app.planning import tuning
from app.planning.choices import OPERATIONS
from app.planning.matching import Choices
from app.planning.plan import plan
from app.precision import BY_DTYPE
from app.report import publish

ASSUMED_ARCH = "sm_90a"  # to find mistakes where there is no card


def sweep(options: argparse.Namespace) -> int:
    """Sweep what the options name. Returns 0, or 1 if a point computed something wrong. Raises UserError."""
    asked = {option: getattr(options, option) for option in OPERATIONS if getattr(options, option) is not None}
    if len(asked) + options.pipeline != 1:
        raise UserError("say what to sweep: one of --conv NAME, --fc NAME, --pool NAME or --pipeline")
    if options.pipeline and (options.set or options.layer or options.fused):
        raise UserError("--pipeline sweeps the whole job: leave --set, --layer and --fused out")
    with exit_on_interrupt():
        if options.plot is not None:
            figures.prepare(options.plot)
        graph = network_graph(options.network)
        why_not = device.why_no_gpu()
        found = {"name": "", "architecture": ASSUMED_ARCH} if why_not else device.describe_gpu()
        card, arch = found["name"], found["architecture"]
        known = tuning.load(card)
    if options.pipeline:
        return sweep_pipeline(options, graph, card, arch, known, why_not)
    option, name = asked.popitem()
    targets, notes = find_targets(options, graph, OPERATIONS[option], name, arch, known)
    if why_not is not None:
        raise UserError(f"a sweep needs an NVIDIA GPU: {why_not}")
    with exit_on_interrupt():
        from app.bench.sweep.on_card import OnCard
    with device.gpu_errors():
        return run(options, targets, notes, card, lambda target: OnCard(target, arch))


def find_targets(
    options: argparse.Namespace, graph: Graph, operation: str, name: str, arch: str, known: tuning.Tuning
) -> tuple[list[Target], list[str]]:
    """The layers to sweep with their points, and why others of the operation are left out.

    Raises UserError for unknown names and values, and if no point can run on any layer.
    """
    row = registry.find(operation, name)
    if row is None:
        raise UserError(f"a sweep is of one {operation} kernel, not of auto: choose one (see 'kernels')")
    values = parse_settings(options.set, row)
    if options.precision is not None:
        check_precision(row, options.precision)
    layers = [step.layer.name for step in graph.steps if step.layer.operation == operation]
    if not layers:
        raise UserError(f"network {graph.network.name} has no {operation} layer: name another with --network")
    if options.layer is not None and options.layer not in layers:
        named = ", ".join(layers)
        raise UserError(
            f"network {graph.network.name} has no {operation} layer '{options.layer}': choose one of {named}"
        )
    targets: list[Target] = []
    notes: list[str] = []
    for layer in layers if options.layer is None else [options.layer]:
        try:
            problem = problem_of(graph, layer, row, arch, options.precision or Choices.precision, options.fused)
            targets.append(make_target(layer, problem, row, options.batch, arch, values, known))
        except UserError as error:
            notes.append(f"{layer} left out: {error}")
            refusal = error
            continue
        before = known.known(problem, row, arch)
        if before is not None and before.images > options.batch:
            notes.append(f"{layer} was tuned over {before.images:,} images: fewer do not change what 'auto' takes")
    if not targets:
        raise refusal
    return targets, notes


def check_precision(row: Variant, asked: str) -> None:
    """Raises UserError where the kernel lacks the type; a plan would take its own first one instead."""
    own = [BY_DTYPE[dtype].name for dtype in row.dtypes if dtype in BY_DTYPE]
    if asked not in own:
        raise UserError(
            f"{row.operation} kernel '{row.name}' does not compute in {asked}, only in {', '.join(own)}: "
            "change --precision"
        )


def problem_of(graph: Graph, layer: str, row: Variant, arch: str, precision: str, fused: bool) -> Problem:
    """What the layer asks of the variant: alone, or as the main job's plan has it with that variant named."""
    choices = Choices(precision, fused, {layer: row})
    nodes = plan(graph, arch, choices).nodes
    for node in nodes:
        if node.head.name == layer:
            return node.problem
    within = next(node.name for node in nodes if layer in [part.name for part in node.layers])
    raise UserError(f"layer {layer} is no kernel of its own but part of {within}: leave --fused out")


def run(
    options: argparse.Namespace,
    targets: list[Target],
    notes: list[str],
    card: str,
    measuring: Callable[[Target], AbstractContextManager[Measure]],
) -> int:
    """Measure, store each layer's best point, print, write and draw. Raises UserError if Ctrl-C cut it short."""
    tables: list[Path] = []

    def keep(target: Target) -> None:
        if target.points:
            tables.append(tuning.store(card, target.results()))

    complete = measure_all(targets, measuring, keep)
    finished, total = sum(target.finished for target in targets), sum(len(target.grid) for target in targets)
    if finished:
        report = as_document(options, targets, notes, card, str(tables[-1]) if tables else None)
        publish(report, as_text, output_request(options))
    if options.plot is not None:
        plots.draw_layers(options.plot, options.network, targets)
    if not complete:
        raise UserError(f"interrupted after {finished} of {total} points: what they gave is kept")
    if any(target.wrong for target in targets):
        return 1
    if not tables:
        raise UserError(f"no point could run ({targets[0].skipped[-1].reason}): try other values")
    return 0
