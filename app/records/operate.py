"""Define the JSON documents of ``doctor``, ``cache``, ``precompile`` and ``compare``."""

from typing import Annotated, Any, Literal, TypedDict

from app.records.derive import Length, OneOf
from app.records.parts import AboveZero, Amount, Count, RequestedPrecision

Area = Literal["system", "packages", "extras", "GPU", "files", "environment"]


class Finding(TypedDict):
    """One finding of `doctor`, with the remedy if something is missing."""

    area: Area
    name: str
    value: str
    needed_for: Annotated[str, "what does not work without it; empty if nothing is missing"]
    remedy: str
    missing: bool


class Doctor(TypedDict):
    """Findings about system, packages, GPU and files, with remedies for what is missing (`doctor --json FILE`)."""

    schema: Literal["lenet5-inference/doctor/1"]
    findings: list[Finding]


class CachedFiles(TypedDict):
    """Number, size and age of the cached files of one kind."""

    kind: Literal["compiled kernels", "Fashion-MNIST", "tuning tables", "peer settings", "learn progress"]
    folder: Annotated[str, "folder within the cache"]
    files: Count
    bytes: Count
    oldest_s: Annotated[Amount | None, "seconds since the last change; null without files"]
    newest_s: Amount | None


class Cache(TypedDict):
    """Number, size and age of the files in the cache, by kind (`cache --json FILE`)."""

    schema: Literal["lenet5-inference/cache/1"]
    folder: str
    cleared: Annotated[bool, "whether the files listed were removed"]
    kinds: list[CachedFiles]


class Precompile(TypedDict):
    """The precisions and the number of kernels that were compiled for an architecture (`precompile --json FILE`)."""

    schema: Literal["lenet5-inference/precompile/1"]
    network: str
    architecture: str
    precisions: Annotated[list[RequestedPrecision], Length(1)]
    kernels: Annotated[Count, "number of kernels that the main job needs"]
    compiled: Annotated[Count, "number of these that were compiled; the others were in the cache"]
    seconds: Amount


class Difference(TypedDict):
    """A setting or property of the machine that differs between the documents before and after."""

    name: str
    before: Annotated[list[Any], Length(1), "distinct values in the documents before"]
    after: Annotated[list[Any], Length(1), "distinct values in the documents after"]


Unit = Literal["ms", "s"]


class ComparedRow(TypedDict):
    """Times of one row before and after, and the verdict."""

    name: str
    unit: Unit
    before: Annotated[AboveZero, "median; of several documents, the geometric mean of their medians"]
    after: AboveZero
    percent: Annotated[float, "growth of the time in percent"]
    interval: Annotated[
        Annotated[list[float], Length(2, 2)] | None,
        "95 % interval of percent, for all rows together; null for too few samples",
    ]
    verdict: Annotated[
        str,
        OneOf(("slower", "faster", "slower run", "faster run", "same", "unknown")),
        "`slower run`, `faster run`: one document per side, so that only these two runs differ for certain",
    ]
    failed: Annotated[bool, "whether the row is slower by over `fail_above` percent"]


class OmittedRow(TypedDict):
    """A row that some of the compared documents lack."""

    name: str
    before: Annotated[Count, "number of documents that have it"]
    after: Count


class Compare(TypedDict):
    """The change of each row's time from one set of documents to another (`compare BEFORE… -- AFTER… --json FILE`)."""

    schema: Literal["lenet5-inference/compare/2"]
    of: Annotated[str, "schema of all documents"]
    before: Annotated[list[str], Length(1), "files of the documents before: one, or at least two"]
    after: Annotated[list[str], Length(1), "files of the documents after: one, or at least two"]
    noise: Annotated[
        Literal["runs", "samples"],
        "source of the intervals: how much runs differ (several documents per side), or how much the samples within a "
        "run differ",
    ]
    fail_above: Annotated[Amount | None, "percent"]
    differences: Annotated[list[Difference], "differences of machine, settings and software"]
    rows: Annotated[list[ComparedRow], Length(1)]
    left_out: Annotated[list[OmittedRow], "rows that some document lacks"]
    failed: Annotated[list[str], "rows that are slower by over `fail_above` percent"]
