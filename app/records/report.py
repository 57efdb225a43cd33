"""Define the JSON report of the main job: verdicts, times of layers and of the whole run, start-up, memory, power."""

from typing import Annotated, Literal, NotRequired, TypedDict

from app.records.derive import Length
from app.records.parts import Amount, Card, Count, Network, Positive, Precision, Processor, Samples, Split, Weights


class Data(TypedDict):
    """The images that the main job classified."""

    source: str
    split: Annotated[Split | None, "`test` or `train` if the images are verified Fashion-MNIST"]
    dtype: Annotated[str, "number type of the images as they are copied to the device"]


class GpuSettings(TypedDict):
    """Settings of a run on a GPU."""

    streams: Positive
    chunk: Positive
    images: Annotated[
        Literal["read by the first kernel", "copied at once", "copied in chunks"],
        "how the images reach the GPU: `read by the first kernel` over the bus, `copied at once` or `copied in chunks`",
    ]
    fused: bool
    runs: Positive
    warmup: Count
    layer_runs: Count


class CpuSettings(TypedDict):
    """Settings of a run on the CPU."""

    threads: Positive
    chunk: Positive
    runs: Positive


class Difference(TypedDict):
    """One image whose label differs from that of the float64 reference."""

    index: Annotated[Count, "number of the image, from 0"]
    label: Count
    reference: Annotated[Count, "label of the reference"]
    margin: Annotated[Amount | None, "the reference's best logit minus the second; null if infinite"]
    excused: Annotated[
        bool,
        "the margin is a near-tie: below 64 roundings of the magnitudes that the image's logits sum, 4 in tf32, 8 in "
        "fp16 and 48 in int8, as app/base/precision.py defines",
    ]


class Agreement(TypedDict):
    """Whether the labels equal those of the float64 reference, except for a few near-ties."""

    passed: bool
    verdict: Annotated[str, "why, in a sentence"]
    reference: Annotated[str, "what the labels are compared with"]
    compared: Annotated[Count, "number of labels compared"]
    near_ties_allowed: Annotated[
        Count,
        "the number that may differ: 0.1 % of the images in fp32 and fp32x, 1 % in tf32, fp16 and int8, and always one",
    ]
    differences: list[Difference]


class Accuracy(TypedDict):
    """Whether the number of correct answers reaches what the weights file promises and `--min-accuracy` demands."""

    passed: Annotated[bool | None, "null if neither demands a number"]
    verdict: Annotated[str, "why, in a sentence"]
    warning: Annotated[
        str,
        "the likely mistake where correct answers are near chance, else empty. Near chance: with 20 labelled images or "
        "more, less than a third of the way from 1 ÷ classes to all",
    ]
    correct: Annotated[Count | None, "null without labels"]
    total: Annotated[Count, "all images, repeated passes counted"]
    expected: Annotated[Count | None, "correct answers that the weights file promises for its own network, if any"]
    least: Annotated[Amount | None, "share of correct answers that `--min-accuracy` demands, or null"]


class Layer(TypedDict):
    """Median time and rates of one kernel launch, for a layer and the layers fused into it."""

    name: Annotated[str, "the layer, with those fused into it"]
    kernel: Annotated[str, "name of the kernel"]
    images: Positive
    ms: Annotated[Amount, "median"]
    spread_ms: Annotated[Amount | None, "90th minus 10th percentile"]
    gflop: Amount
    tflops: Amount
    gbytes_per_s: Annotated[Amount, "bytes of inputs, weights and outputs, each counted once, per second"]
    share: Annotated[Amount | None, "share of the sum of all layers' times"]
    samples: NotRequired[Samples]


class Times(TypedDict):
    """Percentiles of a time in ms, by host clock or CUDA events; null with too few runs: 10 for p90, 100 for p99."""

    p50: Annotated[Amount, "median"]
    p90: Amount | None
    p99: Amount | None
    min: Amount
    runs: Positive
    samples: NotRequired[Samples]


class OnCardTimes(Times):
    """Percentiles of the time of a pass over images that are already on the card."""

    images: Positive


class ComparedPrecision(TypedDict):
    """Times and labels of the same batch in another precision."""

    precision: Precision
    end_to_end_ms: Times
    gain: Annotated[Amount, "this run's median time ÷ that of the other precision"]
    compared: Annotated[Count, "number of labels compared"]
    differences: list[Difference]


class Pipeline(TypedDict):
    """Time of copies, kernels and their overlap in one traced run (``main_job.statistics.pipeline_usage``)."""

    span_ms: Amount
    h2d_ms: Annotated[Amount, "time in which at least one copy to the device was running"]
    kernels_ms: Annotated[Amount, "time in which at least one kernel was running"]
    d2h_ms: Annotated[Amount, "time in which at least one copy to the host was running"]
    overlap: Annotated[Amount, "time in which a copy and a kernel ran together ÷ copy time"]
    kernel_share: Annotated[Amount, "`kernels_ms` ÷ span"]
    copy_share: Annotated[Amount, "time in which at least one copy was running ÷ span"]
    idle_share: Annotated[Amount, "time in which neither a copy nor a kernel was running ÷ span"]
    enqueue_share: Annotated[Amount, "time in which the host was enqueueing ÷ span"]
    limit: Literal["compute", "copy", "enqueue"]


StartUp = TypedDict(
    "StartUp",
    {
        "start": Annotated[
            Amount,
            "from the creation of the process to the first line of main.py: the interpreter and its site packages. "
            "Linux reports it to 10 ms; 0 where it does not",
        ],
        "import": Annotated[Amount, "the program's modules, h5py and the standard library"],
        "numpy": Annotated[Amount, "importing NumPy"],
        "cupy": Annotated[Amount, "importing CuPy; not on the CPU"],
        "weights": Annotated[Amount, "reading and checking the weights, building the network"],
        "context": Annotated[Amount, "starting the driver, reading the compute capability, creating the CUDA context"],
        "nvrtc": Annotated[Amount, "loading the compiler, whose version and build are part of the cache's keys"],
        "data": Annotated[Amount, "finding, verifying and decompressing the images, on a GPU into page-locked memory"],
        "engine": Annotated[Amount, "loading ONNX Runtime and preparing the network for it (CPU only)"],
        "kernels": Annotated[Amount, "planning, compiling or reading from the cache, loading, packing, device buffers"],
    },
    total=False,
)


class Clock(TypedDict):
    """Clock of the multiprocessors in MHz."""

    min: Count
    median: Count
    max: Count


class Power(TypedDict):
    """Energy and power that the GPU takes while it classifies the batch again and again."""

    seconds: Amount
    images: Annotated[Positive, "number of images classified in this time"]
    joules: Annotated[Amount, "energy of the whole card"]
    watts: Amount
    microjoules_per_image: Amount
    source: Annotated[
        Literal["energy counter", "power samples"],
        "`energy counter`: NVML's counter of energy, read just after two of its updates; `power samples`: the mean of "
        "power readings, if the card has no counter",
    ]
    sm_clock_mhz: Clock | None


class Report(TypedDict):
    """Verdicts on a run's labels, its times, memory and power (`main.py --json FILE`)."""  # by app.main_job.report

    schema: Literal["lenet5-inference/report/4"]
    device: Card | Processor
    network: Network
    weights: Weights
    data: Data
    precision: Annotated[Precision, "the coarsest precision that any layer used"]
    batch: Annotated[Positive, "images classified"]
    settings: GpuSettings | CpuSettings
    passed: Annotated[bool, "false if one of the two verdicts below failed; the exit code follows it"]
    agreement: Agreement
    accuracy: Accuracy
    first_labels: Annotated[list[str], Length(0, 6), "names or numbers of the first images' labels"]
    layers: Annotated[
        list[Layer],
        Length(1),
        "one row per kernel launch (on the CPU per layer), without transfers. On the CPU: the time of all threads ÷ "
        "their number; ONNX Runtime gives one time, in the one row `whole graph`, and no `op_times`",
    ]
    op_times: Annotated[list[Layer], "the same for each convolution with only its bias, without pooling"]
    on_card_ms: Annotated[OnCardTimes | None, "one pass of all kernels over `images` images that are on the card"]
    raw_copy_ms: Annotated[
        Times | None,
        "only the copy of the same images' bytes from page-locked memory to the card, in one piece; null on the CPU, "
        "with `--cycle` and where not all images fit on the card at once",
    ]
    compare: Annotated[ComparedPrecision | None, "the same batch in the precision that `--compare` names, else null"]
    pipeline: Annotated[Pipeline | None, "one traced run of the batch copied in chunks; null with `--cycle`"]
    power: NotRequired[
        Annotated[Power | None, "with `--power`: measured by NVML while the batch is repeated for 5 s; else null"]
    ]
    end_to_end_ms: Annotated[Times, "host clock, from the call, with the device idle, to readable labels on the host"]
    images_per_s: Annotated[Amount, "`batch` ÷ median end-to-end time"]
    device_memory_bytes: Annotated[Count, "device memory of the pipeline's buffers and weights"]
    peak_device_memory_bytes: Annotated[
        Count, "the same at its largest, during the measurements; without the driver's context"
    ]
    one_off_ms: Annotated[StartUp, "time of each step of the start-up; a step that did not happen is absent"]
    once_ms: Annotated[Amount, "their sum: from the start of the process until the first image can be classified"]
    once_own_ms: Annotated[Amount, "this sum without `numpy`, `cupy` and `context`"]
    command_ms: Annotated[Amount, "from the start of the process until the report was made, all measurements included"]
    limit: Annotated[str, "what limits the run, with the shares that show it"]
    notes: Annotated[
        list[str],
        "every deviation from the request, such as smaller chunks for lack of memory; whether weights are exact in "
        "float16; times whose runs fall into two groups, and a pass on the card that disagrees with its layers",
    ]
