"""Read every kernel's resources from the compiler's log: registers, memory, spills, blocks on an SM. Needs no GPU.

Every kernel is compiled for example layers of the networks: a convolution or a matrix product alone, or both
layers of a pair.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from app.base.frozen import Frozen
from app.base.precision import epilogue_dtype, storage_dtype
from app.cuda.compiler import architecture_number, compile_kernel, read_with_includes, resource_report
from app.cuda.compiler_process import compile_on_all_cores
from app.kernels.problems import ConvPairProblem, LinearPairProblem, Problem
from app.kernels.registry import served_form
from app.kernels.variant import LaunchConfig, Variant, ceil_div
from app.layers import Conv2d
from app.network.definitions import FA19, LENET5, Network
from app.records.kernels import NoResources, Resources

EXAMPLES: tuple[tuple[Network, tuple[str, ...]], ...] = (
    (LENET5, ("conv1", "conv2", "pool1", "fc1", "relu1", "argmax")),
    (FA19, ("resize", "softmax")),
)
# lenet5 with filters of 3 x 3, for kernels that do not support 5 x 5.
SMALL_FILTERS = replace(
    LENET5, layers=tuple(replace(one, kernel=3) if isinstance(one, Conv2d) else one for one in LENET5.layers)
)
# Operation of two layers → the layers' names in the examples without their number, and the pair's class.
EXAMPLE_PAIRS: dict[str, tuple[str, Any]] = {
    "conv_pair": ("conv", ConvPairProblem),
    "gemm_pair": ("fc", LinearPairProblem),
}
# Compute capability → an SM's threads, blocks and KB of shared memory (CUDA C++ Programming Guide).
SM_LIMITS = {
    75: (1024, 16, 64),
    80: (2048, 32, 164),
    86: (1536, 16, 100),
    89: (1536, 24, 100),
    90: (2048, 32, 228),
    100: (2048, 32, 228),
    120: (1536, 24, 100),
}
REGISTERS = 65_536  # of an SM
_ENTRY = re.compile(
    r"Compiling entry function '(\w+)'.*?Function properties for \1\n\D*"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)",
    re.DOTALL,
)


class CompiledFunction(Frozen):
    """Resources of a function, from the assembler's log: registers, and bytes of shared memory, stack and spills."""

    registers: int
    static_shared: int
    stack: int
    spill_stores: int
    spill_loads: int


def measure_resources(rows: Sequence[Variant], arch: str) -> list[Resources | NoResources]:
    """Compile each kernel for example layers, on all cores, with a progress bar; return the JSON document's entries.

    There is one for each function and, if a kernel cannot compute a layer, one with the reason. Raises UserError
    without NVRTC. In bytes: static_shared and dynamic_shared of a block; constant, all ``__constant__`` arrays of the
    file; stack and spills of a thread. blocks: how many fit on an SM together; occupancy: their share of the SM's
    threads, 0..1.
    """
    jobs = [(row, layer, problems, arch) for row in rows for layer, problems in example_problems(row)]
    return [*chain.from_iterable(compile_on_all_cores(lambda job: _example_resources(*job), jobs, arch))]


def _example_resources(
    row: Variant, layer: str, problems: Sequence[Problem], arch: str
) -> list[Resources | NoResources]:
    """Return the entries for the first problem that the kernel can compute; if there is none, one with the reason."""
    refusals = [row.refusal_reason(problem, arch) for problem in problems]
    served = problems[refusals.index(None)] if None in refusals else None
    found = [] if served is None else [*_function_resources(row, layer, served, arch)]
    why_none = str(refusals[0]) if served is None else "it launches the library's kernels alone"
    return [*found] or [{"operation": row.operation, "name": row.name, "layer": layer, "reason": why_none}]


def example_problems(row: Variant) -> Iterator[tuple[str, list[Problem]]]:
    """Yield (name, problems) of example layers for a kernel: each number format alone, then with fused layers."""
    if row.operation in EXAMPLE_PAIRS:
        pairs = (_pair_problems(row, network) for network in (LENET5, FA19, SMALL_FILTERS))
        served = (found for found in pairs if any(row.refusal_reason(problem, "sm_90a") is None for problem in found))
        yield f"{EXAMPLE_PAIRS[row.operation][0]}1-2", next(served)
    for network, names in EXAMPLES:
        for layer in network.layers:
            if layer.name in names and layer.operation == row.operation:
                asked = zip(*(_layer_problems(network, layer.name, dtype)[:3] for dtype in row.dtypes), strict=True)
                yield layer.name, [served_form(row, one) for alike in asked for one in alike if one is not None]


def _pair_problems(row: Variant, network: Network) -> list[Problem]:
    """Return pairs of the first two convolutions or products, in each number format; also exact and sparse weights."""
    name, pair = EXAMPLE_PAIRS[row.operation]
    whole = [[_layer_problems(network, f"{name}{number}", dtype) for number in (1, 2)] for dtype in row.dtypes]
    found = [pair(*(list(filter(None, layer))[-1] for layer in both)) for both in whole]
    found += [replace(problem, exact=True) for problem in found if problem.activation_parts == 2]
    return [*found, *(replace(problem, sparse=True) for problem in found if row.sparse)]


def _layer_problems(network: Network, name: str, dtype: str) -> list[Problem | None]:
    """Return a layer's problems: alone, then fused with the next one, two … layers; None where no kernel can fuse."""
    layers = network.layers
    index = next(index for index, layer in enumerate(layers) if layer.name == name)
    return [
        layers[index].kernel_problem(
            network.steps[index].in_shape,
            layers[index + 1 : end],
            bias=False,
            input_dtype="uint8" if all(layer.keeps_bytes for layer in layers[:index]) else storage_dtype(dtype),
            dtype=dtype,
            output_dtype=epilogue_dtype(dtype) if end == len(layers) else storage_dtype(dtype),
        )
        for end in range(index + 1, len(layers) + 1)
    ]


def _function_resources(row: Variant, layer: str, problem: Problem, arch: str) -> Iterator[Resources]:
    """Compile the kernel for a problem; yield the resources of each function that it launches."""
    config: LaunchConfig = row.launch_config(problem)
    compiled = parse_assembler_log(resource_report(row.path, config.defines, arch))
    declares = any("__constant__" in text for text in read_with_includes(row.path).values())
    constant = constant_bytes(compile_kernel(row.path, config.defines, arch)) if declares else 0
    launches = {launch.entry or row.entry: launch for launch in config.launches}  # slices differ only in scalars
    for entry, launch in launches.items():
        found = compiled[entry]
        shared = found.static_shared + launch.shared_bytes
        blocks = blocks_per_sm(launch.threads, found.registers, shared, arch)
        yield {
            "operation": row.operation,
            "name": row.name,
            "layer": layer,
            "entry": entry,
            "threads": launch.threads,
            "registers": found.registers,
            "static_shared": found.static_shared,
            "dynamic_shared": launch.shared_bytes,
            "constant": constant,
            "stack": found.stack,
            "spill_stores": found.spill_stores,
            "spill_loads": found.spill_loads,
            "blocks": blocks,
            "occupancy": blocks * ceil_div(launch.threads, 32) * 32 / SM_LIMITS[architecture_number(arch)][0],
        }


def parse_assembler_log(log: str) -> dict[str, CompiledFunction]:
    """Return the resources of each entry point in the assembler's log; other functions are omitted."""
    found: dict[str, CompiledFunction] = {}
    for entry, *stack, registers, more in (match.groups() for match in _ENTRY.finditer(log)):
        shared = re.search(r"(\d+) bytes smem", more)
        found[entry] = CompiledFunction(int(registers), int(shared[1]) if shared else 0, *map(int, stack))
    return found


def constant_bytes(cubin: bytes) -> int:
    """Return the size of a cubin's ELF section of ``__constant__`` arrays, which newer assemblers do not log."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<3H", cubin, 0x3A)
    # Fields of a section header: offset of its name, type, flags, address, offset, size.
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + index * size) for index in range(count)]
    text = sections[names][4]
    named = {cubin[text + s[0] : cubin.index(b"\0", text + s[0])]: s[5] for s in sections}
    return named.get(b".nv.constant3", 0)


def blocks_per_sm(threads: int, registers: int, shared: int, arch: str) -> int:
    """Return how many blocks fit on an SM together. registers: of a thread. shared: bytes of a block."""
    most_threads, most_blocks, shared_kb = SM_LIMITS[architecture_number(arch)]
    warps = ceil_div(threads, 32)
    # The SM allocates registers to a warp in units of 256, shared memory to a block in units of 128 bytes, of which the
    # system reserves 1 KB per block.
    by_registers = REGISTERS // (ceil_div(max(registers, 1) * 32, 256) * 256) // 4 * 4 // warps
    system = 0 if architecture_number(arch) < 80 else 1024
    by_shared = (shared_kb << 10) // max(ceil_div(shared + system, 128) * 128, 1)
    return min(most_blocks, most_threads // (warps * 32), by_registers, by_shared)
