"""What the compiler says of each kernel: registers, shared and constant memory, spills; and how many fit on an SM.

Needs no GPU. Every row of the registry is compiled for layers of the networks, as convolution or product alone, or
as two layers whole.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from app.cuda.compiler import architecture_number, compile_kernel, resource_report, sources
from app.kernels.problems import ConvPairProblem, LinearPairProblem, Problem, storage, wide
from app.kernels.variant import LaunchConfig, Variant, tiles
from app.layers import Layer
from app.network.definitions import FA19, LENET5, Network
from app.processor import usable_cores

EXAMPLES: tuple[tuple[Network, tuple[str, ...]], ...] = (
    (LENET5, ("conv1", "conv2", "pool1", "fc1", "relu1", "argmax")),
    (FA19, ("resize", "softmax")),
)
# Operation of two layers → their names but for the number, in lenet5; the record of what is asked for.
EXAMPLE_PAIRS: dict[str, tuple[str, Any]] = {
    "conv_pair": ("conv", ConvPairProblem),
    "gemm_pair": ("fc", LinearPairProblem),
}
# Of an SM, by compute capability: threads, blocks, KB of shared memory (CUDA C++ Programming Guide).
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


@dataclass(frozen=True)
class Compiled:
    """What the assembler reported of one function; bytes."""

    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int


@dataclass(frozen=True)
class Resources:
    """One function of a variant that was compiled for one layer; memory in bytes.

    static_shared, dynamic_shared: a block's; constant: ``__constant__`` arrays of the file; stack and spills: a
    thread's. blocks: how many fit on an SM at once; occupancy: their share of the SM's threads, 0..1.
    """

    operation: str
    name: str
    layer: str
    entry: str
    threads: int
    registers: int
    static_shared: int
    dynamic_shared: int
    constant: int
    stack: int
    spill_stores: int
    spill_loads: int
    blocks: int
    occupancy: float


@dataclass(frozen=True)
class Skipped:
    """A variant that was not compiled for a layer, and why."""

    operation: str
    name: str
    layer: str
    reason: str


def measure(rows: Sequence[Variant], arch: str) -> list[Resources | Skipped]:
    """Compile every row for its example layers, one progress bar step each. Raises UserError without NVRTC."""
    jobs = [(row, layer, problems) for row in rows for layer, problems in examples(row)]
    results: list[Resources | Skipped] = []
    with ThreadPoolExecutor(usable_cores()) as pool:  # NVRTC compiles in parallel
        done = pool.map(lambda job: _example(job[0], job[1], job[2], arch), jobs)
        for found in tqdm(done, total=len(jobs), desc=arch, unit=" kernels", disable=not sys.stderr.isatty()):
            results += found
    return results


def _example(row: Variant, layer: str, problems: Sequence[Problem], arch: str) -> Sequence[Resources | Skipped]:
    """What the row compiles to for the first of the problems that it serves, or why for none."""
    refusals = [row.refusal(problem, arch) for problem in problems]
    if None not in refusals:
        return [Skipped(row.operation, row.name, layer, str(refusals[0]))]
    found = list(_resources(row, layer, problems[refusals.index(None)], arch))
    return found or [Skipped(row.operation, row.name, layer, "it launches the library's kernels alone")]


def examples(row: Variant) -> Iterator[tuple[str, list[Problem]]]:
    """Layers of the row's operation, and what it may be asked for: alone in each type, then with what follows."""
    if row.operation in EXAMPLE_PAIRS:
        name, pair = EXAMPLE_PAIRS[row.operation]
        yield f"{name}1-2", [pair(_half(f"{name}1", dtype), _half(f"{name}2", dtype)) for dtype in row.dtypes]
    for network, names in EXAMPLES:
        shape = network.input_shape
        for index, layer in enumerate(network.layers):
            if layer.name in names and layer.operation == row.operation:
                epilogues: list[Sequence[Layer]] = [network.layers[index + 1 : index + 1 + more] for more in range(3)]
                asked = (
                    layer.problem(
                        shape,
                        epilogue,
                        bias=False,
                        input_dtype="uint8" if index == 0 else storage(dtype),
                        dtype=dtype,
                        output_dtype=storage(dtype),
                    )
                    for epilogue in epilogues
                    for dtype in row.dtypes
                )
                yield layer.name, [problem for problem in asked if problem is not None]
            shape = layer.output_shape(shape)


def _half(name: str, dtype: str) -> Problem:
    """A layer of lenet5 with as much of what follows as it takes."""
    found: list[Problem | None] = []
    shape = LENET5.input_shape
    for index, layer in enumerate(LENET5.layers):
        if layer.name == name:
            for end in range(index + 1, len(LENET5.layers) + 1):
                types = {
                    "input_dtype": "uint8" if index == 0 else storage(dtype),
                    "dtype": dtype,
                    "output_dtype": wide(dtype) if end == len(LENET5.layers) else storage(dtype),
                }
                found.append(layer.problem(shape, LENET5.layers[index + 1 : end], bias=False, **types))
        shape = layer.output_shape(shape)
    return [problem for problem in found if problem is not None][-1]


def _resources(row: Variant, layer: str, problem: Problem, arch: str) -> Iterator[Resources]:
    """One for each function that the variant launches."""
    config: LaunchConfig = row.config(problem)
    compiled = parse(resource_report(row.path, config.defines, arch))
    declares = any("__constant__" in text for text in sources(row.path).values())
    constant = constant_bytes(compile_kernel(row.path, config.defines, arch)) if declares else 0
    launches = {launch.entry or row.entry: launch for launch in config.launches}  # slices differ in their scalars only
    for entry, launch in launches.items():
        found = compiled[entry]
        shared = found.shared + launch.shared_bytes
        blocks = blocks_per_sm(launch.threads, found.registers, shared, arch)
        yield Resources(
            operation=row.operation,
            name=row.name,
            layer=layer,
            entry=entry,
            threads=launch.threads,
            registers=found.registers,
            static_shared=found.shared,
            dynamic_shared=launch.shared_bytes,
            constant=constant,
            stack=found.stack,
            spill_stores=found.spill_stores,
            spill_loads=found.spill_loads,
            blocks=blocks,
            occupancy=blocks * tiles(launch.threads, 32) * 32 / _sm_limits(arch)[0],
        )


def parse(log: str) -> dict[str, Compiled]:
    """The assembler's log, by entry point; functions that are only called are left out."""
    found: dict[str, Compiled] = {}
    entry, stack = "", (0, 0, 0)
    own = False  # the properties that follow are the entry point's
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            entry = match[1]
        elif match := re.search(r"Function properties for (\w+)", line):
            own = match[1] == entry
        elif own and (match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes", line)):
            stack = int(match[1]), int(match[2]), int(match[3])
        elif match := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            found[entry] = Compiled(int(match[1]), int(shared[1]) if shared else 0, *stack)
    return found


def constant_bytes(cubin: bytes) -> int:
    """The size of the ELF section of ``__constant__`` arrays; newer assemblers no longer log it."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<3H", cubin, 0x3A)
    # name's offset, type, flags, address, offset, size
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + index * size) for index in range(count)]
    text = sections[names][4]
    named = {cubin[text + s[0] : cubin.index(b"\0", text + s[0])]: s[5] for s in sections}
    return named.get(b".nv.constant3", 0)


def blocks_per_sm(threads: int, registers: int, shared: int, arch: str) -> int:
    """How many blocks fit on an SM at once, as registers (of a thread), shared bytes (of a block) and slots allow."""
    most_threads, most_blocks, shared_kb = _sm_limits(arch)
    warps = tiles(threads, 32)
    # Registers are given to warps by 256; shared memory by 128 bytes, 1 KB of a block being the system's.
    by_registers = REGISTERS // (tiles(max(registers, 1) * 32, 256) * 256) // 4 * 4 // warps
    system = 0 if architecture_number(arch) < 80 else 1024
    by_shared = (shared_kb << 10) // max(tiles(shared + system, 128) * 128, 1)
    return min(most_blocks, most_threads // (warps * 32), by_registers, by_shared)


def _sm_limits(arch: str) -> tuple[int, int, int]:
    return SM_LIMITS[architecture_number(arch)]
