"""The steps of the ladder with their times."""

from typing import Annotated, Literal, TypedDict

from app.records.bench import Settings, Table, Total
from app.records.derive import OneOf
from app.records.parts import Amount, Card, Count, Date, Dtype, Peaks, Positive

Bound = Annotated[str, OneOf(("arithmetic", "issue", "loads", "memory", "constants", "latency"))]


class StepLayer(TypedDict):
    item: Annotated[str, "layer"]
    predicted_ms: Annotated[Amount, "no kernel with the step's counts can be faster"]
    bound: Bound
    slots: Annotated[
        str,
        OneOf(("executed", "loop", "formula")),
        "the issue slots are all that the hardware counted, those of the hottest loop, or by formula",
    ]
    ms: Amount | None


class Step(TypedDict):
    operation: Annotated[str, OneOf(("conv", "gemm"))]
    step: Count
    name: str
    since: Annotated[str | None, "name of the step that it continues; null: the first of a line"]
    dtype: Dtype
    idea: Annotated[str, "in a few words"]
    layers: list[StepLayer]
    predicted_ms: Annotated[Amount | None, "the layers' sum; null unless it serves all of its kind"]
    ms: Annotated[Amount | None, "the layers' sum; null unless all were timed"]
    bound: Bound | None
    reason: Annotated[str, "why a layer has no time, else empty"]


class Ladder(TypedDict):
    """Every step of the ladder with predicted and measured times (`ladder --json FILE`)."""

    schema: Literal["lenet5-inference/ladder/1"]
    network: str
    date: Annotated[Date, "of the measurement"]
    device: Card
    images: Positive
    settings: Settings
    peaks: Peaks
    tables: Annotated[list[Table], "a table for each layer alone"]
    totals: Annotated[list[Total], "the convolutions alone, added up"]
    steps: Annotated[list[Step], "in the order of the ladders"]
    notes: list[str]
