"""Define the document of ``docs.languages``: one step of the ladder in other languages, judged and timed on a card."""

from typing import Annotated, Literal, TypedDict

from app.records.parts import Amount, Card, Count, Date, Positive


class Row(TypedDict):
    """A language's kernel, or one of ours: its size, its times and the oracle's verdict."""

    name: Annotated[str, "the language, or CUDA C++ and the kernel's name"]
    versions: Annotated[dict[str, str], "package → version"]
    lines: Annotated[Count, "of the file, with comments; 0 without a file"]
    ms: Annotated[Amount | None, "median device time of the batch"]
    spread_ms: Annotated[Amount | None, "90th percentile minus the 10th"]
    clock: Annotated[Literal["events", "host"], "`host`: several passes back to back ÷ their number"]
    launch_us: Annotated[Amount | None, "median host time to enqueue the work for one image, in µs"]
    error: Annotated[Amount | None, "worst error ÷ the allowed error in all batches"]
    hides: Annotated[str, "what the language decides; empty for ours"]
    wrong: Annotated[bool, "the oracle's verdict (exit code 1)"]
    reason: Annotated[str, "why there is no time, or what is wrong; else empty"]


class Languages(TypedDict):
    """One step of the ladder in other languages beside ours (`python -m docs.languages --json FILE`)."""

    schema: Literal["lenet5-inference/languages/1"]
    date: Date
    command: Annotated[str, "what measures this again"]
    device: Card
    problem: Annotated[str, "the layer, in the form of tuning tables"]
    tile: Annotated[dict[str, int], "parameters of our step: the tile that all compute"]
    images: Annotated[Positive, "of the batch that is timed"]
    batches: Annotated[list[Positive], "images of the batches that are judged only"]
    rows: Annotated[list[Row], "our step, our fastest kernel, then the languages"]
