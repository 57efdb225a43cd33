"""Define the document of ``bench --peers``: times and labels of this program and of other frameworks."""

from typing import Annotated, Literal, NotRequired, TypedDict

from app.records.parts import Amount, Card, Count, Date, Positive, Precision, Samples


class Quantiles(TypedDict):
    """Percentiles of a time in ms, by nearest rank; null where samples are too few: 10 for p10 and p90, 100 for p99."""

    p10: Amount | None
    p50: Annotated[Amount, "median"]
    p90: Amount | None
    p99: Amount | None
    runs: Annotated[Positive, "samples"]
    samples: NotRequired[Samples]


class Tried(TypedDict):
    """Median times of one setting of an engine, from a few runs."""

    setting: str
    on_card_ms: Annotated[Amount | None, "median"]
    end_to_end_ms: Annotated[Amount | None, "median"]
    reason: Annotated[str, "why it did not run, else empty"]


class Row(TypedDict):
    """Times and labels of one engine in one precision."""

    engine: Annotated[
        str,
        "`ours`, `torch-eager`, `torch-max-autotune`, `torch-reduce-overhead`, `jax-jit`; older documents also have "
        "`cudnn-graph`: PyTorch with cuDNN's graphs, and `onnx-runtime`",
    ]
    precision: Precision
    ours: bool
    on_card_ms: Annotated[
        Quantiles | None,
        "images and labels on the card: 2 to 10 passes (as many as take 20 ms) enqueued back to back, from the first "
        "call until the device is idle, ÷ their number",
    ]
    end_to_end_ms: Annotated[
        Quantiles | None,
        "from the call, with bytes in page-locked memory and the device idle, to readable labels on the host",
    ]
    settings: NotRequired[Annotated[dict[str, str], "measure → the fastest setting, which gave the row's times"]]
    tried: NotRequired[Annotated[list[Tried], "every setting, each tried in a few runs"]]
    unsteady: Annotated[Count, "timed runs with other labels than the first"]
    note: str
    reason: Annotated[str, "why there are no times, else empty"]
    correct: Annotated[Count | None, "labels of the timed runs, as of the next two"]
    changed: Annotated[Count | None, "labels that are not the float64 reference's"]
    largest_margin: Annotated[Amount | None, "largest float64 margin of those that differ"]
    wrong: Annotated[bool, "our labels broke the accuracy rule or were unsteady (exit code 1)"]


class Best(TypedDict):
    """Fastest peer, and its time relative to ours."""

    best: Annotated[str | None, "the fastest peer"]
    ratio: Annotated[Amount | None, "its median ÷ ours"]
    each: Annotated[dict[str, Amount], "engine → its median ÷ ours"]


class Ratio(TypedDict):
    """Our times in one precision relative to the peers' times."""

    precision: Precision
    against: Annotated[Precision, "the peers' precision"]
    on_card_ms: Best
    end_to_end_ms: Best


class Peers(TypedDict):
    """Times and labels of this program, PyTorch and JAX on the same images and card (`bench --peers --json FILE`)."""

    schema: Literal["lenet5-inference/peers/1"]
    date: Date
    command: Annotated[str, "what measures this again"]
    network: str
    device: Card
    software: Annotated[dict[str, str], "package → version"]
    images: Annotated[Positive, "per batch"]
    rounds: Annotated[Positive, "turns of each engine"]
    rows: list[Row]
    ratios: Annotated[list[Ratio], "one per row of ours that ran"]
    notes: NotRequired[Annotated[list[str], "systems without rows, and why"]]
