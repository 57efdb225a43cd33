"""Define the document of ``bench``: times, rates and errors of kernels, libraries and the CPU."""

from typing import Annotated, Literal, NotRequired, TypedDict

from app.records.derive import OneOf
from app.records.parts import (
    Amount,
    Card,
    Count,
    Date,
    Dtype,
    Parameters,
    Peaks,
    Positive,
    Precision,
    Processor,
    Samples,
)

Kind = Annotated[str, OneOf(("cpu", "library", "kernel", "debug", "file"))]


class Settings(TypedDict):
    """Settings of the measurements."""

    noise: Annotated[Amount, "as requested"]
    l2: Annotated[str, OneOf(("cold", "warm")), "as requested"]
    rule: Annotated[str, "when a measurement ended"]


class Ratios(TypedDict):
    """Speed of a row relative to the library and to the previous step."""

    library_ratio: Annotated[Amount | None, "times as fast as cuBLAS, else cuDNN, in the same type"]
    previous_ratio: Annotated[
        Amount | None, "times as fast as the previous step in the same type; `debug`: as the same step"
    ]


class AchievedRates(TypedDict):
    """Arithmetic rate and memory bandwidth of a row, and the larger of their shares of the card's peaks."""

    tflops: Amount
    gbytes_per_s: Annotated[Amount, "each array moved once"]
    intensity: Annotated[Amount, "FLOPs a byte"]
    share: Annotated[Amount | None, "of the measured peak"]
    limit: Annotated[Literal["arithmetic", "memory"], "the larger share"]


class Rates(Ratios, AchievedRates):
    """The rates that follow from a row's time, their share of the card's peaks, and the ratios to other rows."""


class CommonRow(TypedDict):
    """The fields that timed and untimed rows of `bench` share: a kernel, a library or the CPU on one layer."""

    kind: Annotated[
        Kind,
        "`cpu`: NumPy reference on a few images, scaled; `library`: cuBLAS, cuDNN; `kernel`: ours; `debug`: ours, with "
        "device debug; `file`: a file of the user",
    ]
    name: str
    dtype: Annotated[Dtype, "arithmetic type"]
    step: Count | None
    spread_ms: Annotated[Amount | None, "90th minus 10th percentile"]
    runs: Count
    error: Annotated[Amount | None, "worst error of all elements ÷ its tolerance"]
    settings: Annotated[Parameters, "parameters that are not the defaults"]
    note: str
    reason: Annotated[str, "why there is no time, else empty"]
    wrong: Annotated[bool, "the result was wrong or the kernel failed: exit code 1"]
    instructions: NotRequired[Annotated[str, "`fma`, `hfma2`, `mma` or `wgmma`; empty if unknown"]]
    work: NotRequired[Annotated[Amount, "products that the kernel carries out for each one of the layer"]]
    samples: NotRequired[Samples]


class TimedRow(CommonRow):
    """A row whose kernel was timed, with its median time."""

    ms: Amount
    rates: Rates


class UntimedRow(CommonRow):
    """A row without a time; ``reason`` says why."""

    ms: None
    rates: Rates | None


Row = TimedRow | UntimedRow


class Table(TypedDict):
    """The rows of every kernel for one layer or chain of layers."""

    item: Annotated[str, "a layer, or a chain"]
    operation: str
    is_op: Annotated[bool, "a convolution and its bias alone, output unpooled"]
    images: Positive
    problems: Annotated[dict[str, str], "arithmetic type → the request to the kernels, the key of the tuning tables"]
    rows: list[Row]


class Total(Ratios):
    """Time of one kernel, of a library or of the CPU, added up over all convolutions of the network."""

    kind: Kind
    name: str
    dtype: Dtype
    step: Count | None
    ops: Annotated[dict[str, Amount], "item → ms"]
    sum_ms: Annotated[Amount | None, "null unless all were timed over equally many images"]


class Program(TypedDict):
    """End-to-end time of the main job in one precision with one convolution kernel."""

    precision: Precision
    conv: Annotated[str, "variant of all convolutions; `auto` chooses the other kernels"]
    ms: Amount | None
    spread_ms: Amount | None
    runs: Count
    chunk: NotRequired[Positive]
    threads: NotRequired[Annotated[Positive, "of the processor's row, `CPU, NumPy`, which batches to 1,000 have"]]
    nodes: NotRequired[Annotated[list[str], "layer: kernel"]]
    reason: Annotated[str, "why there is no time, else empty"]
    samples: NotRequired[Samples]


class Batch(TypedDict):
    """Totals and end-to-end times for one batch size."""

    images: Positive
    totals: list[Total]
    whole_program: list[Program]


class Bench(TypedDict):
    """Times, rates and errors of kernels, libraries and the CPU, layer by layer (`bench --json FILE`)."""

    schema: Literal["lenet5-inference/bench/1"]
    date: Date
    subject: Annotated[str, "a network or a shape"]
    device: Card
    cpu: Annotated[Processor, "of the rows without the card"]
    images: Annotated[Positive, "main batch"]
    settings: Settings
    peaks: Peaks
    tables: Annotated[list[Table], "one for each layer alone, then one for each chain that kernels may fuse"]
    totals: Annotated[list[Total], "the convolutions alone, added up"]
    batches: Annotated[list[Batch], "one for each batch size"]
    whole_program: Annotated[list[Program], "the largest batch, end to end from page-locked images to readable labels"]
    notes: Annotated[list[str], "every deviation from the request, such as fewer images for lack of memory"]
