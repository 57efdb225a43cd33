"""Define the documents of ``doctor``, ``cache``, ``precompile`` and ``compare``."""

from typing import Annotated, Any, Literal, TypedDict

from app.records.derive import Length, OneOf
from app.records.parts import AboveZero, Amount, Count, RequestedPrecision

Area = Literal["system", "packages", "extras", "GPU", "files", "environment"]


class Finding(TypedDict):
    """One finding of `doctor`, with the remedy if something is missing."""

    area: Area
    name: str
    value: str
    needed_for: Annotated[str, "what does not work without it; empty where nothing is missing"]
    remedy: str
    missing: bool


class Doctor(TypedDict):
    """Findings about system, packages, GPU and files, with remedies for what is missing (`doctor --json FILE`)."""

    schema: Literal["lenet5-inference/doctor/1"]
    findings: list[Finding]


class CachedFiles(TypedDict):
    kind: Literal["compiled kernels", "Fashion-MNIST", "tuning tables", "peer settings", "learn progress"]
    folder: Annotated[str, "within the cache"]
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
    kernels: Annotated[Count, "that the main job needs"]
    compiled: Annotated[Count, "of them; the others were in the cache"]
    seconds: Amount


class Difference(TypedDict):
    """A setting or property of the machine that differs between the documents before and after."""

    name: str
    before: Annotated[list[Any], Length(1), "the distinct values of this side"]
    after: Annotated[list[Any], Length(1)]


Unit = Literal["ms", "s"]


class ComparedRow(TypedDict):
    """Times of one row before and after, and the verdict."""

    name: str
    unit: Unit
    before: Annotated[AboveZero, "median; of several documents, the geometric mean of their medians"]
    after: AboveZero
    percent: Annotated[float, "by how much the time grew"]
    interval: Annotated[
        Annotated[list[float], Length(2, 2)] | None,
        "95 % interval of percent, for all rows together; null for too few samples",
    ]
    verdict: Annotated[
        str,
        OneOf(("slower", "faster", "slower run", "faster run", "same", "unknown")),
        "`slower run` and `faster run`: of one document per side, which tell of two runs only",
    ]
    failed: Annotated[bool, "slower by over fail_above percent"]


class OmittedRow(TypedDict):
    """A row that is missing from some of the documents."""

    name: str
    before: Annotated[Count, "number of documents that have it"]
    after: Count


class Compare(TypedDict):
    """The change of each row's time from one set of documents to another (`compare BEFORE… -- AFTER… --json FILE`)."""

    schema: Literal["lenet5-inference/compare/2"]
    of: Annotated[str, "schema of all documents"]
    before: Annotated[list[str], Length(1), "files, one on each side, or two or more on each"]
    after: Annotated[list[str], Length(1)]
    noise: Annotated[
        Literal["runs", "samples"],
        "what the intervals know: how far runs lie apart (several documents per side), or the noise of the samples "
        "within a run",
    ]
    fail_above: Annotated[Amount | None, "percent"]
    differences: Annotated[list[Difference], "of machine, settings and software"]
    rows: Annotated[list[ComparedRow], Length(1)]
    left_out: Annotated[list[OmittedRow], "rows that some document lacks"]
    failed: Annotated[list[str], "rows that are slower by over fail_above percent"]
