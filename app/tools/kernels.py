"""Run ``main.py kernels``: list every kernel, and the resources or instructions of its machine code."""

from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter

from app.base.errors import UserError
from app.base.precision import SHORT
from app.commands.kernels import KernelsRequest
from app.kernels.registry import VARIANTS, variants
from app.kernels.train.train import TRAINING_KERNELS
from app.kernels.variant import Variant
from app.planning.choices import check_architecture
from app.planning.few_images import PRODUCTS
from app.records.kernels import CompiledKernels, DisassembledKernels, Kernel, Kernels
from app.terminal.output import publish_report
from app.terminal.text import Column, paragraph, table
from app.tools import machine_code, resources

REFERENCE_ARCH = "sm_90a"
HOW_TO_CHOOSE = (
    "--conv NAME, --fc NAME (gemm) and --pool NAME choose one, or one for each layer: --conv conv1=NAME,conv2=NAME.",
    "auto takes the highest step not marked 'only …', or one measured faster on this card (bench, sweep).",
)
RESOURCES = (
    "static, dynamic: a block's shared memory; const: constant arrays; stack, spill (stores / loads): of a thread",
    "occup.: the most of an SM's threads that registers, shared memory and block size leave room for",
)


def kernels(request: KernelsRequest) -> int:
    """Print every kernel, or its compiled resources or instructions. Return 0. Raises UserError."""
    if request.arch is not None and not (request.resources or request.instructions):
        raise UserError(f"--arch {request.arch} needs --resources or --instructions: add one, or leave --arch out")
    if request.resources and request.instructions:
        raise UserError("--resources and --instructions print tables of their own: give one of them")
    arch = request.arch or REFERENCE_ARCH
    check_architecture(arch)
    rows = [row for operation in dict.fromkeys(row.operation for row in VARIANTS) for row in variants(operation)]
    listed: Kernels = {
        "schema": "lenet5-inference/kernels/1",
        "kernels": [_kernel_row(row) for row in rows],
        "training": [
            {"name": row.name, "summary": row.summary, "system": row.system, "file": row.source}
            for row in TRAINING_KERNELS
        ],
    }
    if request.resources:
        compiled: CompiledKernels = {**listed, "arch": arch, "resources": resources.measure_resources(rows, arch)}
        publish_report(compiled, _resource_text, request.output)
    elif request.instructions:
        loops: DisassembledKernels = {
            **listed,
            "arch": arch,
            "instructions": machine_code.measure_hottest_loops(rows, arch),
        }
        publish_report(loops, _hottest_loops_text, request.output)
    else:
        publish_report(listed, _kernel_text, request.output)
    return 0


def _kernel_row(row: Variant) -> Kernel:
    return {
        "operation": row.operation,
        "step": row.step,
        "name": row.name,
        "since": row.since,
        "file": row.source,
        "dtypes": [*row.dtypes],
        "min_arch": f"sm_{row.min_arch}",
        "pools": row.pools,
        "automatic": row.automatic,
        "system": row.system,
        "summary": row.idea.replace("`", ""),
        "limits": row.limits,
        "tunables": {name: [*values] for name, values in row.tunables.items()},
    }


def _kernel_text(document: Kernels, width: int) -> str:
    """Return the kernels of each operation as text: names and types, then idea, limits and tunables."""
    columns = [
        *(Column("step"), Column("name", left=True), Column("file (app/kernels/)", left=True, optional=1)),
        *(Column(head, left=True) for head in ("types", "from", "pools", "system")),
    ]
    rows: list[list[str]] = []
    for operation, group in groupby(document["kernels"], itemgetter("operation")):
        rows += [[""], [operation]]
        for row in group:
            types = " ".join(SHORT.get(dtype, dtype) for dtype in row["dtypes"])
            pools = "yes" if row["pools"] else "no"
            rows.append([str(row["step"]), row["name"], row["file"], types, row["min_arch"], pools, row["system"]])
            tunables = ", ".join(f"{name} {' '.join(map(str, values))}" for name, values in row["tunables"].items())
            limits, tunables = row["limits"] and f"limits: {row['limits']}", tunables and f"tunables: {tunables}"
            since = row["since"] and f"continues {row['since']}"
            notes = (row["summary"].rstrip("."), since, limits, tunables, _automatic_choice_note(row))
            rows.append(["", "; ".join(filter(None, notes))])
    training = [Column(head, left=True) for head in ("file (app/kernels/)", "idea", "system")]
    trained = [[row["file"], row["summary"], row["system"]] for row in document["training"]]
    lines = [*table(columns, rows, width), "", "train", *table(training, trained, width), ""]
    return "\n".join([*lines, *(line for text in HOW_TO_CHOOSE for line in paragraph(text, width))])


def _automatic_choice_note(row: Kernel) -> str:
    """Return as text when a plan uses the kernel; '' if ``auto`` may choose it for any number of images."""
    if row["automatic"]:
        return ""
    beside = row["operation"] == "gemm" and row["name"] in PRODUCTS
    return "only for few images, or by name" if beside else "only by name"


def _resource_text(document: CompiledKernels, width: int) -> str:
    """Return the resources as a table: one line for each function, or the reason why it was not compiled."""
    columns = [
        *(Column("kernel", left=True), Column("layer", left=True), Column("function", left=True, optional=4)),
        *(Column("threads", optional=2), Column("regs"), Column("static"), Column("dynamic")),
        *(Column("const", optional=6), Column("stack", optional=5), Column("spill")),
        *(Column("blocks/SM", optional=3), Column("occup.")),
    ]
    rows = []
    for row in document["resources"]:
        name = [f"{row['operation']} {row['name']}", row["layer"]]
        if "reason" in row:
            rows.append([*name, f"not compiled: {row['reason']}"])
            continue
        sizes = [f"{row[size]:,}" for size in ("static_shared", "dynamic_shared", "constant", "stack")]
        cells = [row["entry"], str(row["threads"]), str(row["registers"]), *sizes]
        cells += [f"{row['spill_stores']} / {row['spill_loads']}", str(row["blocks"]), f"{row['occupancy']:.0%}"]
        rows.append([*name, *cells])
    head = (
        f"compiled for {document['arch']}: convolutions and products alone, pairs of them whole, each in its kernel's "
        "first type; bytes"
    )
    lines = [*paragraph(head, width), *table(columns, rows, width)]
    return "\n".join([*lines, *(line for text in RESOURCES for line in paragraph(text, width))])


def _hottest_loops_text(document: DisassembledKernels, width: int) -> str:
    """Return the instruction counts as a table: one line for each hottest loop."""
    kinds = ("instructions", *machine_code.CLASSES, machine_code.OTHER)
    heads = ("all", *(kind.replace("_load", "").replace("_", " ") for kind in kinds[1:]))
    columns = [
        *(Column("kernel", left=True), Column("layer", left=True), Column("function", left=True, optional=3)),
        *(Column(head, optional=2 if head in ("barrier", "branch") else 0) for head in heads),
    ]
    rows = []
    for row in document["instructions"]:
        counts: Mapping[str, object] = row
        name = f"{row['operation']} {row['name']}"
        rows.append([name, row["layer"], row["entry"], *(str(counts[kind]) for kind in kinds)])
    head = (
        f"compiled for {document['arch']}: instructions of the loop that multiplies most; global, shared, constant: "
        "loads; a kernel without such a loop has none, or is unrolled whole"
    )
    return "\n".join([*paragraph(head, width), *table(columns, rows, width)])
