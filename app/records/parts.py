"""Define types that several JSON documents share: ranges of numbers, patterns of text, facts on machine and weights."""

from typing import Annotated, Literal, NotRequired, TypedDict

from app.base.precision import PRECISIONS, SHORT
from app.records.derive import Length, OneOf, Pattern, Range

Count = Annotated[int, Range(0)]
Positive = Annotated[int, Range(1)]
Amount = Annotated[float, Range(0)]
AboveZero = Annotated[float, Range(0, above=True)]
Share = Annotated[float, Range(0, 1)]
Label = Annotated[int, Range(0, 255)]

Date = Annotated[str, Pattern(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "date"), "UTC, to the minute"]
Sha256 = Annotated[str, Pattern("[0-9a-f]{64}", "SHA-256")]
InputShape = Annotated[list[Positive], Length(3, 3), "C, H, W"]
Samples = Annotated[list[Amount], "every run in order, in the unit of the median beside it"]
Parameters = Annotated[dict[str, int], "a kernel's compile-time parameters by name"]

Precision = Annotated[str, OneOf(PRECISIONS)]
RequestedPrecision = Annotated[str, OneOf(("auto", *PRECISIONS)), "as requested"]
Split = Annotated[str, OneOf(("test", "train"))]
Dtype = Annotated[str, OneOf(tuple(SHORT))]


class Card(TypedDict):
    """The graphics card, and the versions of its driver, CUDA and CuPy."""

    kind: Literal["cuda"]
    name: Annotated[str, "the card, as CUDA names it"]
    number: NotRequired[Annotated[Count, "N of `cuda:N`"]]
    bus: NotRequired[Annotated[str, "PCI address, for example 0000:1B:00.0"]]
    architecture: Annotated[str, "for example sm_90a"]
    multiprocessors: Count
    memory_bytes: Count
    driver: Annotated[str | None, "version of the NVIDIA kernel driver; null if unknown"]
    driver_cuda: Annotated[str, "newest CUDA that the driver serves"]
    cuda: Annotated[str, "CUDA runtime that CuPy uses"]
    cupy: Annotated[str, "version of CuPy"]


class Processor(TypedDict):
    """The CPU: its name, the threads used, and the versions of the libraries that computed."""

    kind: Literal["cpu"]
    name: str
    threads: Annotated[Positive, "threads used"]
    numpy: Annotated[str, "version of NumPy"]
    onnxruntime: NotRequired[Annotated[str, "version of ONNX Runtime, if it computed"]]


class Network(TypedDict):
    """Name and input shape of a network."""

    name: str
    input_shape: InputShape


class WeightsFile(TypedDict):
    """A weights file: its path, and the SHA-256 of its content."""

    path: str
    sha256: str


class Weights(WeightsFile):
    """A weights file, whether a checksum confirms it, and how it was trained."""

    vouched: Annotated[bool, "whether a checksum confirms the weights: that in the file or that in SHA256SUMS"]
    recipe: Annotated[str | None, "how they were trained"]


class Peaks(TypedDict):
    """The highest arithmetic rates and memory bandwidth measured on the card."""

    tflops: Annotated[
        dict[str, AboveZero],
        "one per family of instructions: `float32` (multiply-adds), `tfloat32`, `float16` (`mma.sync`; absent below "
        "sm_80), `float16 hfma2` (two float16 in a register), `float16 wgmma` (warpgroups; only on sm_90)",
    ]
    gbytes_per_s: Annotated[AboveZero, "bytes that a copy within device memory reads and writes, per second"]
