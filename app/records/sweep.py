"""Define the JSON documents of ``sweep``: times by parameters or streams, and the tables from which ``auto`` picks."""

from typing import Annotated, Literal, NotRequired, TypedDict

from app.records.derive import Range
from app.records.parts import Amount, Count, Parameters, Positive, Precision, RequestedPrecision, Samples


class Point(TypedDict):
    """Time and error of a kernel for one combination of parameters."""

    parameters: Parameters
    ms: Annotated[Amount, "median"]
    spread_ms: Amount | None
    tflops: Amount
    error_share: Annotated[Amount, "largest error ÷ the allowed error"]
    samples: NotRequired[Samples]


class AutoChoice(TypedDict):
    """The kernel and parameters that `auto` chose before the sweep."""

    variant: str
    parameters: Parameters
    ms: Amount | None


class WrongPoint(TypedDict):
    """A combination of parameters with wrong results, and the first mistake."""

    parameters: Parameters
    reason: str


class SkippedPoint(WrongPoint):
    """A combination of parameters that could not run, and how many others failed for the same reason."""

    count: Annotated[Positive, "number of combinations skipped for this reason"]


class SweptLayer(TypedDict):
    """All points of one layer, the fastest first."""

    layer: str
    problem: Annotated[str, "key of the tuning table"]
    points: Annotated[list[Point], "fastest first"]
    default: Parameters
    default_ms: Amount | None
    best: Parameters | None
    best_ms: Amount | None
    gain: Annotated[Amount | None, "time of the default ÷ best time"]
    auto: Annotated[AutoChoice | None, "what `auto` chose before the sweep"]
    skipped: list[SkippedPoint]
    wrong: Annotated[list[WrongPoint], "combinations with wrong results"]


class Sweep(TypedDict):
    """Time and error of a kernel for each combination of its parameters, by layer (`sweep --json FILE`)."""

    schema: Literal["lenet5-inference/sweep/1"]
    card: str
    network: str
    operation: str
    variant: Annotated[str, "the kernel"]
    precision: Precision
    fused: Annotated[bool, "whether the kernel also computed the layers that follow"]
    images: Positive
    finished: Annotated[Count, "combinations that were tried, with whatever result"]
    total: Count
    tuning_table: Annotated[str | None, "file in which the best parameters were stored"]
    notes: list[str]
    layers: list[SweptLayer]


class PipelinePoint(TypedDict):
    """End-to-end time for one number of streams and chunk size."""

    streams: Positive
    chunk: Positive
    ms: Annotated[Amount | None, "median; null if memory is too small"]
    p90_ms: NotRequired[Amount | None]
    overlap: NotRequired[Annotated[Amount, "time in which a copy and a kernel ran together ÷ copy time"]]
    samples: NotRequired[Samples]


class PipelineSweep(TypedDict):
    """End-to-end time of the main job for each number of streams and chunk size (`sweep --pipeline --json FILE`)."""

    schema: Literal["lenet5-inference/pipeline-sweep/1"]
    card: str
    network: str
    precision: RequestedPrecision
    images: Positive
    runs: Positive
    warmup: Count
    finished: Count
    total: Count
    points: list[PipelinePoint]
    best: PipelinePoint | None
    default: PipelinePoint | None
    gain: Annotated[Amount | None, "time of the default ÷ best time"]


class Tuned(TypedDict):
    """The best parameters found for a kernel, and its time in ms over ``images`` images."""

    parameters: dict[str, Annotated[int, Range(1, 2**31 - 1)]]
    ms: Annotated[float, Range(0, 10**12, above=True)]
    images: Annotated[int, Range(1, 10**12)]


class Tuning(TypedDict):
    """Each kernel's best parameters and time on a card, from which `auto` chooses (`bench --save-tuning`, `sweep`)."""

    schema: Literal["lenet5-inference/tuning/1"]
    card: Annotated[str, "as CUDA names it"]
    entries: Annotated[dict[str, dict[str, Tuned]], "layer, as shape and types → kernel → its best parameters"]
