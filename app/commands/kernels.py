"""What ``main.py graph`` and ``main.py kernels`` print."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from app.bench import resources
from app.commands.options.kernels import KernelsRequest
from app.errors import UserError
from app.kernels.registry import VARIANTS, variants
from app.kernels.train.train import TRAINING_KERNELS
from app.kernels.variant import Variant
from app.planning.choices import check_architecture
from app.report import publish

SCHEMA = "lenet5-inference/kernels/1"
WIDTH = 124
REFERENCE_ARCH = "sm_90a"


def kernels(request: KernelsRequest) -> int:
    """Every row of the registry; with ``--resources`` also what each compiles to. Raises UserError."""
    if request.arch is not None and not request.resources:
        raise UserError(f"--arch {request.arch} goes with --resources: add it, or leave --arch out")
    arch = request.arch or REFERENCE_ARCH
    check_architecture(arch)
    operations = list(dict.fromkeys(row.operation for row in VARIANTS))
    rows = [row for operation in operations for row in variants(operation)]
    training = [{**vars(row), "file": row.source} for row in TRAINING_KERNELS]
    document: dict[str, Any] = {"schema": SCHEMA, "kernels": [_row(row) for row in rows], "training": training}
    if request.resources:
        measured = resources.measure(rows, arch)
        document |= {"arch": arch, "resources": [vars(result) for result in measured]}
    lines = _resource_lines if request.resources else _kernel_lines
    publish(document, lambda found, width: "\n".join(lines(found)), request.output)
    return 0


def _row(row: Variant) -> dict[str, Any]:
    return {
        "operation": row.operation,
        "step": row.step,
        "name": row.name,
        "file": row.source,
        "dtypes": list(row.dtypes),
        "min_arch": f"sm_{row.min_arch}",
        "pools": row.pools,
        "automatic": row.automatic,
        "system": row.system,
        "summary": row.summary,
        "limits": row.limits,
        "tunables": {name: list(values) for name, values in row.tunables.items()},
    }


def _kernel_lines(document: Mapping[str, Any]) -> list[str]:
    """Two lines a kernel or more: names and types; the idea, its limits and its tunables."""
    lines: list[str] = []
    operation = ""
    for row in document["kernels"]:
        if row["operation"] != operation:
            operation = row["operation"]
            lines += [
                operation,
                f"  {'step':>4} {'name':<18}{'file (app/kernels/)':<30}{'types':<26}{'from':<7}{'pools':<7}system",
            ]
        lines.append(
            f"  {row['step']:>4} {row['name']:<18}{row['file']:<30}{', '.join(row['dtypes']):<26}{row['min_arch']:<7}"
            f"{'yes' if row['pools'] else 'no':<7}{row['system']}"
        )
        tunables = ", ".join(f"{name} {' '.join(map(str, values))}" for name, values in row["tunables"].items())
        notes = [
            row["summary"],
            *([f"limits: {row['limits']}"] if row["limits"] else []),
            *([f"tunables: {tunables}"] if tunables else []),
            *([] if row["automatic"] else ["only by name"]),
        ]
        lines += textwrap.wrap(
            "; ".join(notes), WIDTH, initial_indent=" " * 7, subsequent_indent=" " * 9, break_on_hyphens=False
        )
    lines += [
        *_training_lines(document),
        "--conv NAME, --fc NAME (gemm) and --pool NAME choose one, or one a layer: --conv conv1=NAME,conv2=NAME.",
        "auto takes the highest step not marked 'only by name', or one measured faster on this card (bench, sweep).",
    ]
    return lines


def _training_lines(document: Mapping[str, Any]) -> list[str]:
    """One line a kernel."""
    return ["train", f"  {'file (app/kernels/)':<30}{'idea':<74}system"] + [
        f"  {row['file']:<30}{row['summary']:<74}{row['system']}" for row in document["training"]
    ]


def _resource_lines(document: Mapping[str, Any]) -> list[str]:
    """One line a function, or the reason why there is none."""
    lines = [
        f"compiled for {document['arch']}: convolutions and products alone, pairs of them whole, each in its kernel's "
        "first type; bytes",
        f"  {'kernel':<26}{'layer':<8}{'function':<30}{'threads':>7}{'regs':>6}{'static':>8}{'dynamic':>8}"
        f"{'const':>7}{'stack':>6}{'spill':>12}{'blocks/SM':>10}{'occup.':>7}",
    ]
    for row in document["resources"]:
        name = f"  {row['operation'] + ' ' + row['name']:<26}{row['layer']:<8}"
        if "reason" in row:
            lines.append(f"{name}not compiled: {row['reason']}")
            continue
        spill = f"{row['spill_stores']} / {row['spill_loads']}"
        lines.append(
            f"{name}{row['entry']:<30}{row['threads']:>7}{row['registers']:>6}{row['static_shared']:>8,}"
            f"{row['dynamic_shared']:>8,}{row['constant']:>7,}{row['stack']:>6}{spill:>12}"
            f"{row['blocks']:>10}{row['occupancy']:>7.0%}"
        )
    lines += [
        "static, dynamic: a block's shared memory; const: constant arrays; stack, spill (stores / loads): of a thread;",
        "occup.: the most of an SM's threads that registers, shared memory and block size leave room for",
    ]
    return lines
