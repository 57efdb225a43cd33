"""What ``main.py graph`` and ``main.py kernels`` print."""

from __future__ import annotations

import argparse

from app import device
from app.errors import UserError
from app.graph import build, find_network
from app.kernels.compiler import ARCHITECTURES
from app.kernels.problems import bytes_moved
from app.kernels.registry import VARIANTS
from app.plan import plan
from app.weights import BUNDLED, load_weights


def graph(options: argparse.Namespace) -> str:
    """The network's layers, then the launches that they become on the chosen architecture."""
    weights = load_weights(options.weights or BUNDLED)
    built = build(find_network(options.network or weights.network), weights)
    if options.arch is not None and options.arch not in ARCHITECTURES:
        raise UserError(f"unknown architecture '{options.arch}': choose one of {', '.join(ARCHITECTURES)}")
    arch = options.arch or _this_card() or "sm_90a"
    network = built.network
    lines = [
        f"{network.name}: {network.summary}",
        f"  {'layer':<12}{'kind':<10}{'output':<16}{'parameters':>12}{'MFLOP':>10}{'activation bytes':>18}",
        f"  {'images':<12}{'input':<10}{_shape(network.input_shape):<16}",
    ]
    for step in built.steps:
        flops = step.layer.flops(step.in_shape) / 1e6
        lines.append(
            f"  {step.layer.name:<12}{step.layer.kind:<10}{_shape(step.out_shape):<16}"
            f"{step.parameter_count:>12,}{flops:>10.4f}{step.float32_bytes:>18,}"
        )
    total = sum(step.layer.flops(step.in_shape) for step in built.steps) / 1e6
    parameters = sum(array.size for array in built.parameters.values())
    lines.append(f"  {'all':<38}{parameters:>12,}{total:>10.4f}")
    lines += [
        f"launches on {arch}, per image ({'one a layer' if options.no_fuse else 'fused'})",
        f"  {'layers':<24}{'kernel':<18}{'reads':<14}{'writes':<18}{'MFLOP':>10}{'bytes':>10}",
    ]
    kernels = {"conv": options.conv, "gemm": options.fc}
    for node in plan(built, arch, fuse=not options.no_fuse, kernels=kernels).nodes:
        moved = bytes_moved(node.problem, 2) - bytes_moved(node.problem, 1)  # weights are read once a batch
        lines.append(
            f"  {node.name:<24}{node.variant.name:<18}{node.reads:<14}{', '.join(node.writes):<18}"
            f"{node.flops / 1e6:>10.4f}{moved:>10,}"
        )
    return "\n".join(lines)


def kernels() -> str:
    """Every row of the registry."""
    lines = [f"{'operation':<12}{'name':<18}{'file (app/kernels/)':<30}{'types':<20}{'from':<8}summary"]
    for row in sorted(VARIANTS, key=lambda row: (row.operation, row.step)):
        lines.append(
            f"{row.operation:<12}{row.name:<18}{row.source:<30}{', '.join(row.dtypes):<20}"
            f"{f'sm_{row.min_arch}':<8}{row.summary}"
        )
    lines.append("--conv NAME and --fc NAME (gemm) choose one; auto takes the highest step that serves a layer.")
    return "\n".join(lines)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "1 label"


def _this_card() -> str | None:
    return None if device.why_no_gpu() else device.describe_gpu()["architecture"]
