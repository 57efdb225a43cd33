"""Count the operations of a kernel per output, and predict from the counts how long a layer takes.

Counts are per thread and per output that the thread computes; only ``round_trips`` is for all outputs of the thread.
The prediction gives, for each part of the card, the time for which that part would be busy if nothing else delayed it.
The longest of these times is the predicted time; no kernel with these counts can be faster.
"""

from collections.abc import Mapping

from app.base.frozen import Frozen
from app.kernels.plain_problems import bytes_moved
from app.kernels.problems import ConvProblem, LinearProblem
from app.ladder.formulas import WARP, Names, Number, evaluate_formula

# Count → (description, default). A lesson has formulas for counts; the default is the formula of all others.
COUNTS: Mapping[str, tuple[str, str]] = {
    "products": ("multiply-adds", "DEPTH"),
    "global_loads": ("loads from global memory", "0"),
    "shared_loads": ("loads from shared memory", "0"),
    "constant_loads": ("loads from constant memory", "0"),
    "global_bytes": ("bytes asked of global memory", "0"),
    "copies": ("copies from global to shared memory", "0"),
    "shared_bytes": ("bytes asked of shared memory", "0"),
    "shared_cycles": ("cycles of shared loads, for a warp", "shared_loads"),
    "wavefronts": ("cycles of the load pipe, for a warp", "global_loads + copies + shared_cycles"),
    "memory_bytes": ("bytes through device memory", "least_bytes"),
    "waste": ("work done ÷ work needed (idle lanes, padding)", "1"),
    "round_trips": ("loads awaited one after the other, for all outputs of a thread", "0"),
    "slots": (
        "issue slots, with those of idle lanes",
        "(products / per_instruction + global_loads + shared_loads + constant_loads + copies) * waste",
    ),
}
# Instruction → multiply-adds per thread. An mma computes 16 x 8 sums of 16 or 8 terms with 32 threads.
PER_INSTRUCTION = {"fma": 1, "hfma2": 2, "mma float16": 64, "mma tfloat32": 32}
LANES = {75: 64, 80: 64}  # float32 multiply-adds per SM and cycle by architecture; all later cards: 128
CONSTANT_CYCLES = 2  # that the constant cache takes for a warp's load, from counters of an H100
ROUND_TRIP = 40  # latency in cycles of a load from the L1 cache
PARTS = {
    "arithmetic": "multiplying",
    "issue": "issuing instructions",
    "loads": "load pipe (L1 and shared memory)",
    "constants": "constant cache",
    "memory": "device memory",
    "latency": "waiting for loads",
}


class Speeds(Frozen):
    """Measured rates of a card, per second: multiply-adds (products), bytes, and cycles of a multiprocessor."""

    products: float
    bytes: float
    cycles: float
    multiprocessors: int
    resident_threads: int  # on the whole card


class Prediction(Frozen):
    """A predicted time, ``ms``. parts: part of the card → ms for which it is busy, of which the longest is ``ms``."""

    parts: Mapping[str, float]

    @property
    def busiest_part(self) -> str:
        """Return the part that is busy longest, a key of ``PARTS``."""
        return max(self.parts, key=lambda part: self.parts[part])

    @property
    def ms(self) -> float:
        """Return the predicted time in ms."""
        return self.parts[self.busiest_part]


def products_per_instruction(instructions: str, dtype: str) -> int:
    """Return how many multiply-adds one instruction does per thread. instructions: their kind, such as ``fma``."""
    return PER_INSTRUCTION.get(instructions) or PER_INSTRUCTION.get(f"{instructions} {dtype}", 1)


def evaluate_counts(
    formulas: Mapping[str, str],
    problem: ConvProblem | LinearProblem,
    names: Names,
    instructions: str,
    loop: float | None,
    executed: float | None = None,
) -> dict[str, Number]:
    """Return name → value of every count of ``COUNTS``. formulas: count → formula, which may use the counts before it.

    loop: instructions per multiply-add in the hottest loop, None if unknown. executed: instructions of the whole kernel
    per output, if the hardware counted them; otherwise they are estimated from ``loop``. Formulas may also use
    ``per_instruction`` and ``least_bytes``, the bytes per output if each array is moved once.
    """
    outputs, images = names["OUTPUTS"], int(names["BATCH"])
    found: dict[str, Number] = {
        **names,
        "per_instruction": products_per_instruction(instructions, problem.dtype),
        "least_bytes": bytes_moved(problem.arguments(), images) / (outputs * images),
    }
    found["products"] = evaluate_formula(COUNTS["products"][1], found)
    for name, formula in formulas.items():
        found[name] = evaluate_formula(formula, found)
    for name, (_, default) in COUNTS.items():
        if name not in formulas:
            found[name] = evaluate_formula(default, found)
    if executed is not None:
        found["slots"] = executed
    elif loop is not None:
        found["slots"] = loop * found["products"] * found["waste"]
    return {name: found[name] for name in COUNTS}


def predict_layer_time(counts: Mapping[str, Number], names: Names, speeds: Speeds) -> Prediction:
    """Return the predicted time of a layer for ``BATCH`` images. counts: of ``evaluate_counts``, per output."""
    outputs = names["OUTPUTS"] * names["BATCH"]
    done = outputs * counts["waste"]
    blocks = names["BLOCKS"] or speeds.multiprocessors
    # With fewer blocks than SMs, some SMs are idle; that affects only the parts that belong to an SM.
    busy = min(blocks, speeds.multiprocessors) / speeds.multiprocessors
    sm = speeds.cycles * speeds.multiprocessors * busy
    at_once = min(blocks * names["THREADS"], speeds.resident_threads) or 1
    return Prediction(
        {
            "arithmetic": 1e3 * done * counts["products"] / (speeds.products * busy),
            "issue": 1e3 * outputs * counts["slots"] / WARP / (4 * sm),
            "loads": 1e3 * done * counts["wavefronts"] / WARP / sm,
            "constants": 1e3 * done * counts["constant_loads"] * CONSTANT_CYCLES / WARP / sm,
            "memory": 1e3 * outputs * counts["memory_bytes"] / speeds.bytes,
            "latency": 1e3 * blocks * names["THREADS"] * counts["round_trips"] * ROUND_TRIP / speeds.cycles / at_once,
        }
    )
