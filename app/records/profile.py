"""Define the JSON documents of ``profile``: times of kernels, copies and API calls, a timeline, hardware counters."""

from typing import Annotated, Literal, NotRequired, TypedDict

from app.records.derive import Length, OneOf
from app.records.parts import Amount, Card, Count, Date, Dtype, Positive, RequestedPrecision

PerRun = Annotated[Amount, "per run"]
Phase = tuple[Literal["stage", "conv1", "pool", "load", "conv2", "store"], Amount, Amount]
Counts = Annotated[list[Count], Length(2)]


class Settings(TypedDict):
    """Settings of the run that `profile` traced."""

    streams: Positive
    chunk: Positive
    fused: bool
    runs: Positive


class EndToEnd(TypedDict):
    """Median end-to-end times in ms, without and with instrumentation."""

    plain: Amount
    counted: Annotated[Amount, "while API calls are timed"]
    events: Annotated[Amount, "with CUDA events around every action"]


class Row(TypedDict):
    """Time per run of one kernel or copy."""

    kind: Annotated[str, OneOf(("kernel", "h2d", "d2h", "d2d"))]
    layer: Annotated[str, "empty for copies in and out"]
    name: str
    calls: PerRun
    total_ms: PerRun
    share: Amount
    min_ms: Amount
    average_ms: Amount
    max_ms: Amount
    bytes: Annotated[Amount | None, "per run"]
    gbytes_per_s: Amount | None


class Overlap(TypedDict):
    """Mean time per run in which copies ran, kernels ran, and both ran at once."""

    copies_ms: Amount
    kernels_ms: Amount
    both_ms: Amount


class Call(TypedDict):
    """Time per run of one function of CUDA's API."""

    name: str
    calls: PerRun
    total_ms: PerRun
    share: Annotated[Amount, "share of the host's time"]
    average_us: Amount
    max_us: Amount


class Counter(TypedDict):
    """Hardware counters of one kernel, in percent."""

    layer: str
    name: str
    kernel: str
    load: Amount | None
    store: Amount | None
    warps: Amount | None
    occupancy: Amount | None
    throughput: Annotated[dict[str, Amount | None], "unit → share of its peak"]
    bound: Annotated[str, "the busiest unit, latency or unknown"]


class StampedEndToEnd(TypedDict):
    """Median end-to-end times in ms, without and with time stamps in the first kernel."""

    plain: Amount
    stamped: Annotated[Amount, "with the first kernel compiled to store time stamps"]


class Images(TypedDict):
    """Number of images that all multiprocessors have requested, staged and computed, at each time in ``us`` (µs)."""

    us: Annotated[list[Amount], Length(2)]
    requested: Counts
    staged: Counts
    computed: Counts


class Timeline(TypedDict):
    """Start and end of each phase of the first kernel's warpgroups, in µs since the first one started."""

    kernel: str
    layers: Annotated[str, "layers that this kernel computes"]
    images_are: Annotated[str, "how images reach the card"]
    end_to_end_ms: StampedEndToEnd
    on_card_ms: Annotated[Amount, "the whole pass, images on the card, without stamps"]
    raw_copy_ms: Annotated[Amount, "one copy of the images' bytes"]
    mhz: Annotated[Amount, "clock of the multiprocessors"]
    multiprocessor: Annotated[Count, "number of the multiprocessor with the median time"]
    warpgroups: Annotated[list[list[Phase]], Length(1), "phases of each warpgroup of this multiprocessor, in order"]
    images: Images


class Profile(TypedDict):
    """Times of the main job's kernels, copies and API calls, and hardware counters (`profile --json FILE`)."""

    schema: Literal["lenet5-inference/profile/1"]
    weights: Annotated[str, "path of the weights file"]
    device: Card
    network: str
    images: Annotated[str, "source of the images"]
    batch: Positive
    precision: RequestedPrecision
    settings: Settings
    end_to_end_ms: EndToEnd
    rows: Annotated[list[Row], "one row for each kernel and copy, the longest total time first"]
    overlap: Overlap
    api: Annotated[list[Call], "calls of CUDA's API"]
    trace: Annotated[str | None, "file of the trace"]
    counters: Annotated[list[Counter], "hardware counters, in percent"]
    counters_note: Annotated[str | None, "why there are no counters"]
    timeline: NotRequired[Annotated[Timeline | None, "with `--timeline`, else null"]]


Counted = Annotated[Amount | None, "null where the tool gave no number"]


class StepCounts(TypedDict):
    """Hardware counters of a layer: sums over launches, largest percentages of peak (app/lab/profile/counters.py)."""

    instructions: Counted
    multiply_adds: Counted
    global_loads: Counted
    shared_loads: Counted
    shared_cycles: Counted
    bank_conflicts: Counted
    dram_read: Counted
    dram_written: Counted
    issue: Counted
    tensor: Counted
    occupancy: Counted
    SM: Counted
    L1: Counted
    L2: Counted
    DRAM: Counted


class StepRow(TypedDict):
    """Hardware counters of one kernel of the ladder on one layer."""

    operation: str
    name: Annotated[str, "name of the kernel"]
    dtype: Dtype
    images: Positive
    layer: str
    launches: Positive
    counts: StepCounts


class Counters(TypedDict):
    """Hardware counters of every kernel of the ladder (`profile --every-step --json FILE`)."""

    schema: Literal["lenet5-inference/counters/1"]
    date: Date
    device: Card
    network: str
    rows: list[StepRow]
    note: Annotated[str | None, "why there are no counters, or null"]
