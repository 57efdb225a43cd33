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
    changed: Annotated[Count | None, "number of checked labels that differ from those of this program's engine"]
    unsteady: Annotated[Count, "number of timed calls whose labels differ from those at the check"]
    reason: Annotated[str, "why there are no times, else empty"]


class Call(TypedDict):
    """The times of all engines for one kind of call, and their ratios."""

    name: Annotated[str, "name of the kind, for `--only`"]
    what: Annotated[str, "what is passed and returned"]
    images: Positive
    precision: Precision
    callers: list[Caller]
    best: Annotated[str | None, "fastest engine of PyTorch in the same precision"]
    ratio: Annotated[Amount | None, "its median ÷ ours; below 1, ours is slower"]
    tf32_ratio: Annotated[Amount | None, "if ours is fp32x: median of PyTorch's fastest engine in tf32 ÷ ours"]
    wrong: Annotated[bool, "whether `Classifier` gave other labels than the main job's engine (exit code 1)"]


class Calls(TypedDict):
    """Times of calls of `Classifier` and of PyTorch on the same images (`python -m app.lab.calls --json FILE`)."""

    schema: Literal["lenet5-inference/calls/1"]
    date: Date
    command: Annotated[str, "what measures this again"]
    network: str
    device: Card
    software: Annotated[dict[str, str], "package → version"]
    rounds: Annotated[Positive, "number of rounds; each round measures every engine once"]
    rows: list[Call]
