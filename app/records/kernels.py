"""Define the JSON documents of ``kernels``, ``check``, ``learn`` and ``ladder``: files, resources, verdicts, times."""

from typing import Annotated, Literal, NotRequired, TypedDict, final

from app.records.bench import Settings, Table, Total
from app.records.derive import Length, OneOf
from app.records.parts import Amount, Card, Count, Date, Dtype, Peaks, Positive


class Kernel(TypedDict):
    """One kernel: its file, number types, limits, parameters and idea."""

    operation: str
    step: Annotated[Count, "number in the operation's ladder of kernels"]
    name: str
    since: NotRequired[Annotated[str | None, "name of the kernel that it improves; null: it starts from none"]]
    file: str
    dtypes: Annotated[list[str], Length(1)]
    min_arch: str
    pools: Annotated[bool, "whether the kernel can also pool"]
    automatic: Annotated[bool, "whether `auto` may choose it for any number of images"]
    system: Annotated[str, "origin of the idea"]
    summary: str
    limits: str
    tunables: Annotated[dict[str, list[int]], "compile-time parameter → values that `sweep` tries"]


class TrainingKernel(TypedDict):
    """One kernel that `train` launches."""

    name: str
    summary: str
    system: str
    file: str


class CompiledForLayer(TypedDict):
    """A kernel, and the layer for which it was compiled."""

    operation: str
    name: str
    layer: str


class Function(CompiledForLayer):
    """One compiled function of a kernel."""

    entry: Annotated[str, "the function"]


@final
class Resources(Function):
    """Registers, memory (in bytes) and occupancy of one compiled kernel function."""

    threads: Annotated[Positive, "threads of a block"]
    registers: Count
    static_shared: Count
    dynamic_shared: Count
    constant: Count
    stack: Count
    spill_stores: Count
    spill_loads: Count
    blocks: Annotated[Count, "blocks that fit on a multiprocessor at once"]
    occupancy: Annotated[Amount, "their threads ÷ the multiprocessor's most"]


@final
class NoResources(CompiledForLayer):
    """A kernel that could not be compiled for a layer."""

    reason: Annotated[str, "why it was not compiled"]


class Instructions(Function):
    """Number of machine instructions by kind, in the loop of the kernel that multiplies most."""

    instructions: Annotated[Positive, "all of them"]
    multiply: Annotated[Positive, "multiply-adds, and products of tensor cores"]
    global_load: Count
    shared_load: Count
    constant_load: Count
    store: Count
    barrier: Count
    branch: Count
    other: Annotated[Count, "addresses, comparisons, conversions, moves"]


class Kernels(TypedDict):
    """Every kernel with its file, types, tunables and idea (`kernels --json FILE`)."""

    schema: Literal["lenet5-inference/kernels/1"]
    kernels: list[Kernel]
    training: Annotated[list[TrainingKernel], "kernels that `train` launches"]


class CompiledKernels(Kernels):
    """Registers, shared memory and spills of each compiled kernel (`kernels --resources --json FILE`)."""

    arch: Annotated[str, "GPU architecture of the compilation"]
    resources: list[Resources | NoResources]


class DisassembledKernels(Kernels):
    """Number of instructions by kind in the hottest loop of each kernel (`kernels --instructions --json FILE`)."""

    arch: Annotated[str, "GPU architecture of the compilation"]
    instructions: list[Instructions]


Verdict = Literal["right", "WRONG", "not tried"]


class Shape(TypedDict):
    """Verdict on a kernel's results for one shape."""

    shape: str
    types: Annotated[str, "number types of the products and, if another, of the images"]
    images: Positive
    verdict: Verdict
    reason: Annotated[str | None, "the first wrong output, or why the shape was not tried; null if right"]


class Place(TypedDict):
    """A kernel's loads for each multiply-add, counted without a GPU, and the time predicted from them."""

    name: str
    global_loads: Annotated[Amount, "from global memory"]
    shared_loads: Annotated[Amount, "from shared or constant memory"]
    predicted_ms: Amount


class Check(TypedDict):
    """Verdict on a kernel's results for each shape that was tried (`check --json FILE`)."""

    schema: Literal["lenet5-inference/check/1"]
    operation: Annotated[str, OneOf(("conv", "gemm", "pool"))]
    kernel: str
    source: Annotated[str, "file of the kernel"]
    device: Annotated[str, "name of the GPU or of the processor"]
    shapes: Annotated[list[Shape], Length(1)]
    places: NotRequired[Annotated[list[Place], "with `--counts`: this and the shipped kernels by predicted time"]]


class Exercise(TypedDict):
    """One exercise of `learn`: whether it is solved, and how many hints were shown."""

    number: Positive
    name: str
    title: str
    solved: bool
    hints: Count
    hints_shown: Count


class Learn(TypedDict):
    """All exercises, or the one that was copied or hinted at (`learn --json FILE`; `learn check` writes `check`)."""

    schema: Literal["lenet5-inference/learn/1"]
    exercises: list[Exercise]
    text: Annotated[list[str], "hints, or what to do next"]


Bound = Annotated[str, OneOf(("arithmetic", "issue", "loads", "memory", "constants", "latency"))]


class StepLayer(TypedDict):
    """Predicted and measured time of one kernel of the ladder on one layer."""

    item: Annotated[str, "the layer"]
    predicted_ms: Annotated[Amount, "shortest possible time of a kernel with so many operations and loads"]
    bound: Bound
    slots: Annotated[
        str,
        OneOf(("executed", "loop", "formula")),
        "where the number of instructions is from: `executed`, a hardware counter; `loop`, the machine code of the "
        "hottest loop; `formula`, the step's formula",
    ]
    ms: Amount | None


class Step(TypedDict):
    """One kernel of the ladder, with its predicted and measured times."""

    operation: Annotated[str, OneOf(("conv", "gemm"))]
    step: Count
    name: str
    since: Annotated[str | None, "name of the kernel that it improves; null: it starts from none"]
    dtype: Dtype
    idea: Annotated[str, "in a few words"]
    layers: list[StepLayer]
    predicted_ms: Annotated[Amount | None, "the layers' sum; null unless it computes all layers of its operation"]
    ms: Annotated[Amount | None, "the layers' sum; null unless all were timed"]
    bound: Bound | None
    reason: Annotated[str, "why a layer has no time, else empty"]


class Ladder(TypedDict):
    """Every kernel of the ladder with predicted and measured times (`ladder --json FILE`)."""

    schema: Literal["lenet5-inference/ladder/1"]
    network: str
    date: Annotated[Date, "of the measurement"]
    device: Card
    images: Positive
    settings: Settings
    peaks: Peaks
    tables: Annotated[list[Table], "one table for each layer"]
    totals: Annotated[list[Total], "sums over the convolutions"]
    steps: Annotated[list[Step], "in the order of the ladders"]
    notes: list[str]
