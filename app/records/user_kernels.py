"""Define the JSON documents about users' kernels: the record of a timed kernel, and the ranking of such records."""

from typing import Annotated, Literal, TypedDict

from app.records.bench import Bench, TimedRow
from app.records.derive import Length, OneOf, Pattern
from app.records.parts import Date, Dtype, Positive, Sha256

KernelFile = Annotated[str, Pattern(r"[A-Za-z0-9][A-Za-z0-9_.+-]*\.cu", "name of a kernel's file")]
Author = Annotated[str, Length(most=100), "as given by `--author`, else empty"]


class Source(TypedDict):
    """The file of a user's kernel, identified by its content."""

    file: KernelFile
    sha256: Annotated[Sha256, r"SHA-256 of the file, with line ends as `\n`"]
    like: Annotated[str | None, "name of the kernel whose arguments and launch it shares (option `--as`)"]


class KernelRecord(TypedDict):
    """A user's kernel that was right, with the report on the run that timed it (`bench FILE.cu --record FILE`)."""

    schema: Literal["lenet5-inference/kernel-record/1"]
    version: Annotated[str, "version of this program"]
    nvrtc: Annotated[str, "version of the run-time compiler"]
    author: Author
    source: Source
    bench: Annotated[Bench, "as `bench FILE.cu --json` writes it: each row of kind `file` is this kernel's"]


class HandedIn(TypedDict):
    """A record that somebody handed in for a kernel."""

    record: Annotated[str, "file of the record"]
    file: KernelFile
    author: Author


class RankedKernel(TypedDict):
    """The rank of a kernel and the figures of its fastest record."""

    place: Annotated[Positive, "the rank, from 1"]
    sha256: Annotated[Sha256, "SHA-256 of the kernel's file"]
    handed_in: Annotated[list[HandedIn], "all records of this kernel, the fastest first"]
    beside: Annotated[bool, "whether the kernel's file is beside the fastest record: NAME.cu beside NAME.json"]
    row: Annotated[TimedRow, "the kernel's row in that record"]
    beats: Annotated[list[str], "steps that were slower in the same run, the fastest first"]
    behind: Annotated[list[str], "steps that were as fast or faster, the fastest first"]
    date: Date
    software: Annotated[str, "driver, CUDA, CuPy, NVRTC and this program"]


class RankedProblem(TypedDict):
    """The kernels that were timed on one layer with equally many images, on one model of card."""

    problem: Annotated[str, "layer as in tuning tables: kind of kernel, shape and number types"]
    dtype: Dtype
    images: Positive
    l2: Annotated[str, OneOf(("cold", "warm"))]
    card: str
    multiprocessors: Positive
    kernels: list[RankedKernel]


class Unranked(TypedDict):
    """A file that could not be ranked, and why."""

    record: str
    reason: str


class Ranking(TypedDict):
    """Users' kernels in the order of their times, for each layer and card (`rank FOLDER --json FILE`)."""

    schema: Literal["lenet5-inference/ranking/1"]
    folder: str
    problems: list[RankedProblem]
    unranked: list[Unranked]
