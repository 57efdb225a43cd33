"""Define the document of ``app.lab.calls``: times of calls of ``Classifier`` and of PyTorch on the same images."""

from typing import Annotated, Literal, TypedDict

from app.records.parts import Amount, Card, Count, Date, Positive, Precision
from app.records.peers import Quantiles


class Caller(TypedDict):
    """The times and the labels of one engine in one precision, for the images of one kind of call."""

    engine: Annotated[Literal["ours", "torch-eager", "torch-compile"], "`ours`: `Classifier`"]
    precision: Precision
    setting: Annotated[str, "PyTorch's fastest setting"]
    ms: Annotated[Quantiles | None, "from the call to its return, every call with other images than the last"]
    changed: Annotated[Count | None, "labels, of all checked ones, that are not the engine's"]
    unsteady: Annotated[Count, "timed calls with other labels than at the check"]
    reason: Annotated[str, "why there are no times, else empty"]


class Call(TypedDict):
    """The times of all engines for one kind of call, and their ratios."""

    name: Annotated[str, "as `--only` takes it"]
    what: Annotated[str, "the images and the answer"]
    images: Positive
    precision: Precision
    callers: list[Caller]
    best: Annotated[str | None, "the fastest peer in the same precision"]
    ratio: Annotated[Amount | None, "its median ÷ ours; below 1, ours lost"]
    tf32_ratio: Annotated[Amount | None, "the same of the fastest peer in tf32, where ours is fp32x"]
    wrong: Annotated[bool, "our labels were not the engine's (exit code 1)"]


class Calls(TypedDict):
    """Times of calls of `Classifier` and of PyTorch on the same images (`python -m app.lab.calls --json FILE`)."""

    schema: Literal["lenet5-inference/calls/1"]
    date: Date
    command: Annotated[str, "what measures this again"]
    network: str
    device: Card
    software: Annotated[dict[str, str], "package → version"]
    rounds: Annotated[Positive, "turns of each caller"]
    rows: list[Call]
