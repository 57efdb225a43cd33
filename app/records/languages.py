"""Define the JSON document of ``docs.languages``: one kernel in several languages, timed on a card."""

from typing import Annotated, Literal, TypedDict

from app.records.parts import Amount, Card, Count, Date, Positive


class Row(TypedDict):
    """A language's kernel, or one of this program: its size, its times, and whether its results are right."""

    name: Annotated[str, "the language, or CUDA C++ and the kernel's name"]
    versions: Annotated[dict[str, str], "package → version"]
    lines: Annotated[Count, "of the file, with comments; 0 without a file"]
    ms: Annotated[Amount | None, "median device time of the batch"]
    spread_ms: Annotated[Amount | None, "90th percentile minus the 10th"]
    clock: Annotated[Literal["events", "host"], "`host`: several passes back to back ÷ their number"]
    launch_us: Annotated[Amount | None, "median host time to enqueue the work for one image, in µs"]
    error: Annotated[Amount | None, "largest error in all batches ÷ the allowed error"]
    hides: Annotated[str, "what the language decides instead of the programmer; empty for this program's kernels"]
    wrong: Annotated[bool, "whether the results were wrong (exit code 1)"]
    reason: Annotated[str, "why there is no time, or what is wrong; else empty"]


class Languages(TypedDict):
    """One kernel in several GPU languages beside this program's (`python -m docs.languages --json FILE`)."""

    schema: Literal["lenet5-inference/languages/1"]
    date: Date
    command: Annotated[str, "what measures this again"]
    device: Card
    problem: Annotated[str, "the layer, as the key of a tuning table"]
    tile: Annotated[dict[str, int], "tile sizes that all kernels use, as parameters of this program's kernel"]
    images: Annotated[Positive, "images of the batch that is timed"]
    batches: Annotated[list[Positive], "numbers of images of the batches that are checked but not timed"]
    rows: Annotated[list[Row], "this program's kernel, its fastest kernel, then the languages"]
