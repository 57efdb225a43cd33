"""The registry of kernels, what they compile to, and whether they are right."""

from typing import Annotated, Literal, NotRequired, TypedDict, final

from app.records.derive import Length, OneOf
from app.records.parts import Amount, Count, Positive


class Kernel(TypedDict):
    operation: str
    step: Annotated[Count, "of the ladder"]
    name: str
    since: NotRequired[
        Annotated[str | None, "name of the kernel of this operation that it continues; null: the first of a line"]
    ]
    file: str
    dtypes: Annotated[list[str], Length(1)]
    min_arch: str
    pools: Annotated[bool, "can pool in the same kernel"]
    automatic: Annotated[bool, "`auto` may take it"]
    system: Annotated[str, "where the idea is from"]
    summary: str
    limits: str
    tunables: Annotated[dict[str, list[int]], "parameter → values that sweep tries"]


class TrainingKernel(TypedDict):
    name: str
    summary: str
    system: str
    file: str


class OfLayer(TypedDict):
    operation: str
    name: str
    layer: str


class Function(OfLayer):
    entry: Annotated[str, "the function"]


@final
class Resources(Function):
    """What a function takes; sizes in bytes."""

    threads: Annotated[Positive, "of a block"]
    registers: Count
    static_shared: Count
    dynamic_shared: Count
    constant: Count
    stack: Count
    spill_stores: Count
    spill_loads: Count
    blocks: Annotated[Count, "at once on a multiprocessor"]
    occupancy: Amount


@final
class NoResources(OfLayer):
    reason: Annotated[str, "why it was not compiled"]


class Instructions(Function):
    """Instructions of the loop that multiplies most, in the machine code, by kind."""

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
    """The registry of kernels (`kernels --json FILE`)."""

    schema: Literal["lenet5-inference/kernels/1"]
    kernels: list[Kernel]
    training: Annotated[list[TrainingKernel], "kernels of train"]


class CompiledKernels(Kernels):
    """What each kernel compiles to (`kernels --resources --json FILE`)."""

    arch: Annotated[str, "compiled for"]
    resources: list[Resources | NoResources]


class DisassembledKernels(Kernels):
    """The machine code of each kernel (`kernels --instructions --json FILE`)."""

    arch: Annotated[str, "compiled for"]
    instructions: list[Instructions]


Verdict = Literal["right", "WRONG", "not tried"]


class Shape(TypedDict):
    shape: str
    types: Annotated[str, "of the images, if another, and of the products"]
    images: Positive
    verdict: Verdict
    reason: Annotated[str | None, "the first mistake, or why it was not tried; null if right"]


class Check(TypedDict):
    """Whether a kernel is right (`check --json FILE`)."""

    schema: Literal["lenet5-inference/check/1"]
    operation: Annotated[str, OneOf(("conv", "gemm", "pool"))]
    kernel: str
    source: Annotated[str, "file of the kernel"]
    device: Annotated[str, "a GPU's name, or the processor"]
    shapes: Annotated[list[Shape], Length(1)]
