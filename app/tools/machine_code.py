"""Count the instructions of a kernel's hottest loop in its machine code, with ``nvdisasm``. Needs no GPU.

The hottest loop has the most multiplications in its straight-line body; among equals, it is the shortest. Its counts
show how many issue slots a warp spends on each multiplication, which the source does not show.
"""

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.cuda.compiler import compile_kernel
from app.cuda.compiler_process import compile_on_all_cores
from app.kernels.variant import Variant
from app.records.kernels import Instructions
from app.tools.resources import example_problems

REMEDY = "pip install nvidia-cuda-nvdisasm, or install the CUDA toolkit, and put nvdisasm on PATH"
TIMEOUT_S = 120
# Class of instructions → prefixes of their names, searched in this order.
CLASSES: dict[str, tuple[str, ...]] = {
    "multiply": ("FFMA", "HFMA2", "DFMA", "HMMA", "IMMA", "HGMMA", "IGMMA"),
    "global_load": ("LDG", "LDGSTS", "UTMALDG", "UBLKCP"),
    "shared_load": ("LDS", "LDSM"),
    "constant_load": ("LDC", "ULDC"),
    "store": ("STG", "STS", "STL"),
    "barrier": ("BAR", "WARPSYNC", "DEPBAR", "LDGDEPBAR", "SYNCS", "WARPGROUP"),
    "branch": ("BRA", "BSSY", "BSYNC", "EXIT", "CALL", "RET", "BREAK"),
}
OTHER = "other"  # addresses, comparisons, conversions, moves
_FUNCTION = re.compile(r"^\.text\.(\w+):")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+\{?\s*(?:@!?U?P\w+ )?\s*([A-Z][\w.]*)\s*(.*?);")


class Instruction(Frozen):
    """One machine instruction: address, full name such as ``LDG.E.CONSTANT``, and operands."""

    address: int
    name: str
    operands: str

    @property
    def kind(self) -> str:
        """Return the class of the instruction, a key of ``CLASSES`` or ``OTHER``."""
        stem = self.name.partition(".")[0]
        # A move written as a product with zero multiplies nothing: HFMA2.MMA R1, -RZ, RZ, 0, 0.
        if stem == "HFMA2" and "-RZ, RZ" in self.operands:
            return OTHER
        return next((kind for kind, names in CLASSES.items() if stem in names), OTHER)


def measure_hottest_loops(rows: Sequence[Variant], arch: str) -> list[Instructions]:
    """Compile each kernel for example layers, on all cores, with a progress bar; return the JSON document's entries.

    Each entry has the instruction counts of a function with a loop that multiplies. Raises UserError without nvdisasm.
    """
    find_nvdisasm()
    jobs = [(row, layer, problems, arch) for row in rows for layer, problems in example_problems(row)]
    return [*chain.from_iterable(compile_on_all_cores(lambda job: [*_example_instructions(*job)], jobs, arch))]


def _example_instructions(row: Variant, layer: str, problems: Sequence[Any], arch: str) -> Iterator[Instructions]:
    problem = next((problem for problem in problems if row.refusal_reason(problem, arch) is None), None)
    config = None if problem is None else row.launch_config(problem)
    if config is None or not config.launches:
        return
    for entry, code, labels in parse_functions(disassemble(compile_kernel(row.path, config.defines, arch))):
        if loop := hottest_loop_counts(code, labels):
            about = {"operation": row.operation, "name": row.name, "layer": layer, "entry": entry}
            yield cast(Instructions, about | loop)  # counts by class


def find_nvdisasm() -> str:
    """Return the path of ``nvdisasm``. Raises UserError if there is none."""
    tool = shutil.which("nvdisasm")
    if tool is None:
        raise UserError(f"needs nvdisasm, which is not on PATH: {REMEDY}")
    return tool


def disassemble(cubin: bytes) -> str:
    """Return the machine code of a cubin as text. Raises UserError if ``nvdisasm`` is missing or fails."""
    tool = find_nvdisasm()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([tool, "-c", str(path)], capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode or not done.stdout:
        raise UserError(f"{tool} fails: {(done.stderr.splitlines() or ['without a message'])[0]}")
    return done.stdout


def parse_functions(text: str) -> Iterator[tuple[str, list[Instruction], dict[str, int]]]:
    """Yield the name of each function in nvdisasm's text, its instructions, and its labels' addresses."""
    name, code, labels, waiting = "", list[Instruction](), dict[str, int](), list[str]()
    for line in [*text.splitlines(), ".text.end:"]:
        if found := _FUNCTION.match(line):
            if name:
                yield name, code, labels
            name, code, labels, waiting = found[1], [], {}, []
        elif found := _LABEL.match(line):
            waiting.append(found[1])
        elif found := _INSTRUCTION.match(line):
            address = int(found[1], 16)
            labels |= dict.fromkeys(waiting, address)
            waiting = []
            code.append(Instruction(address, found[2], found[3]))


def hottest_loop_counts(code: Sequence[Instruction], labels: dict[str, int]) -> dict[str, int] | None:
    """Return how many instructions the hottest loop has, in all and by class, without inner loops that only copy.

    Keys: ``instructions`` for the sum, and the classes. Return None if no loop has half of the function's
    multiplications: most are then outside of loops.
    """
    jumps = (
        (one.address, labels.get(_jump_target(one), one.address + 1)) for one in code if one.name.startswith("BRA")
    )
    loops = {(first, last) for last, first in jumps if first <= last}

    def loop_body(loop: tuple[int, int]) -> list[Instruction]:
        return [one for one in code if loop[0] <= one.address <= loop[1]]

    counted = [(sum(one.kind == "multiply" for one in loop_body(loop)), loop[0] - loop[1], loop) for loop in loops]
    most, _, hottest = max(counted, default=(0, 0, (0, 0)))
    if not most or 2 * most < sum(one.kind == "multiply" for one in code):
        return None
    copies = [
        loop for multiplies, _, loop in counted if not multiplies and hottest[0] <= loop[0] and loop[1] <= hottest[1]
    ]
    inside = [one for one in loop_body(hottest) if not any(low <= one.address <= high for low, high in copies)]
    kinds = Counter(one.kind for one in inside)
    return {"instructions": len(inside), **{kind: kinds[kind] for kind in (*CLASSES, OTHER)}}


def _jump_target(jump: Instruction) -> str:
    found = re.search(r"\.L_x_\d+", jump.operands)
    return found[0] if found else ""
