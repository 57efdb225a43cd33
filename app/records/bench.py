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

    noise: Annotated[Amount, "requested relative error of the medians"]
    l2: Annotated[str, OneOf(("cold", "warm")), "whether the L2 cache holds the arrays when a run begins"]
    rule: Annotated[str, "when a measurement ended"]


class Ratios(TypedDict):
    """Speed of a row relative to the library and to the previous step."""

    library_ratio: Annotated[Amount | None, "time of cuBLAS, else cuDNN, in the same type ÷ the row's time"]
    previous_ratio: Annotated[
        Amount | None, "time of the previous step in the same type (`debug`: of the same step) ÷ the row's time"
    ]


class AchievedRates(TypedDict):
    """Arithmetic rate and memory bandwidth of a row, and the larger of their shares of the card's peaks."""

    tflops: Amount
    gbytes_per_s: Annotated[Amount, "bytes of all arrays, each counted once, per second"]
    intensity: Annotated[Amount, "FLOPs per byte"]
    share: Annotated[Amount | None, "share of the measured peak that `limit` names"]
    limit: Annotated[Literal["arithmetic", "memory"], "which of both shares is larger"]


class Rates(Ratios, AchievedRates):
    """Rates that follow from a row's time, their share of the card's peaks, and ratios to other rows."""


class CommonRow(TypedDict):
    """The fields that timed and untimed rows of `bench` share: a kernel, a library or the CPU on one layer."""

    kind: Annotated[
        Kind,
        "`cpu`: NumPy reference on a few images, scaled; `library`: cuBLAS or cuDNN; `kernel`: of this program; "
        "`debug`: the same, compiled for a debugger; `file`: the user's kernel",
    ]
    name: str
    dtype: Annotated[Dtype, "arithmetic type"]
    step: Count | None
    spread_ms: Annotated[Amount | None, "90th minus 10th percentile"]
    runs: Count
    error: Annotated[Amount | None, "largest error of an element ÷ its tolerance"]
    settings: Annotated[Parameters, "parameters that are not the defaults"]
    note: str
    reason: Annotated[str, "why there is no time, else empty"]
    wrong: Annotated[bool, "whether the result was wrong or the kernel failed (exit code 1)"]
    instructions: NotRequired[Annotated[str, "`fma`, `hfma2`, `mma` or `wgmma`; empty if unknown"]]
    work: NotRequired[Annotated[Amount, "products that the kernel computes ÷ products of the layer"]]
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
    """The rows of every kernel for one layer, or for a chain of layers that one kernel may fuse."""

    item: Annotated[str, "name of the layer or chain"]
    operation: str
    is_op: Annotated[bool, "whether it is a convolution with only its bias, without pooling"]
    images: Positive
    problems: Annotated[dict[str, str], "arithmetic type → text of shape and types, the key of the tuning tables"]
    rows: list[Row]


class Total(Ratios):
    """Time of one kernel, of a library or of the CPU, added up over all convolutions of the network."""

    kind: Kind
    name: str
    dtype: Dtype
    step: Count | None
    ops: Annotated[dict[str, Amount], "layer → ms"]
    sum_ms: Annotated[Amount | None, "null unless all layers were timed with equally many images"]


class Program(TypedDict):
    """End-to-end time of the main job in one precision with one convolution kernel."""

    precision: Precision
    conv: Annotated[str, "kernel of all convolutions; `auto` chooses the other kernels"]
    ms: Amount | None
    spread_ms: Amount | None
    runs: Count
    chunk: NotRequired[Positive]
    threads: NotRequired[Annotated[Positive, "only in the row `CPU, NumPy`, which batches up to 1,000 images have"]]
    nodes: NotRequired[Annotated[list[str], "texts `layer: kernel`"]]
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
    cpu: Annotated[Processor, "processor of the rows `cpu`"]
    images: Annotated[Positive, "images of the main batch"]
    settings: Settings
    peaks: Peaks
    tables: Annotated[list[Table], "one for each layer, then one for each chain of layers that kernels may fuse"]
    totals: Annotated[list[Total], "sums over the convolutions"]
    batches: Annotated[list[Batch], "one for each batch size"]
    whole_program: Annotated[list[Program], "the largest batch, end to end from page-locked images to readable labels"]
    notes: Annotated[list[str], "every deviation from the request, such as fewer images for lack of memory"]
