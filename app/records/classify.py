"""Define the JSON documents of ``classify`` and ``predict``: counts, speeds, hashes of results, measured costs."""

from typing import Annotated, Literal, NotRequired, TypedDict

from app.records.derive import Length, OneOf, Range
from app.records.parts import (
    AboveZero,
    Amount,
    Count,
    Network,
    Positive,
    Precision,
    Processor,
    Sha256,
    Share,
    WeightsFile,
)

LIMITS = ("disk", "decompression", "bus", "kernels", "compute")


class Shards(TypedDict):
    """Number of shards (input files) that this run classified, that an earlier run classified, and unreadable ones."""

    classified: Annotated[Count, "shards classified by this run"]
    kept: Annotated[Count, "shards classified by an earlier run, whose results `--resume` has checked"]
    unreadable: Annotated[list[str], "for each shard that cannot be read, the reason"]


class Rates(TypedDict):
    """Number of images, and the speed in images and bytes per second."""

    images: Count
    images_per_s: Amount
    gbytes_per_s: Annotated[Amount, "10⁹ bytes of pixels per second, decompressed"]


class Classified(Rates):
    """Number of images that this run classified, its speed and what limited it."""

    limit: Annotated[str, OneOf((*LIMITS, "output")), "what took the most time; output: writing the results"]


class LaneSeconds(TypedDict):
    """Seconds that a device's threads spent on each activity, summed over the threads."""

    read: Annotated[Amount, "reading uncompressed shards"]
    decompress: Annotated[Amount, "reading compressed shards"]
    wait: Annotated[Amount, "waiting for the card"]
    compute: Annotated[Amount, "computing on a CPU"]


class Device(Rates):
    """Images, speed and seconds per activity of one GPU or group of CPU cores."""

    host: str
    device: Annotated[str, "such as `cuda:0`, or `cpu:0-3` for the cores 0 to 3"]
    name: Annotated[str, "name of the card or processor"]
    arithmetic: str
    lanes: Annotated[Positive, "threads that read, and on a CPU compute"]
    limit: Annotated[str, OneOf(LIMITS), "what took most of the lanes' time"]
    lane_seconds: LaneSeconds


class Classify(TypedDict):
    """Number of shards and images classified, correct answers, speed of each device (`classify --json FILE`)."""

    schema: Literal["lenet5-inference/classify/1"]
    network: Network
    weights: WeightsFile
    arithmetic: Annotated[
        str, "precision and what computes in it, such as `fp32x on sm_90a` or `fp32 by NumPy`; the same on all devices"
    ]
    out: Annotated[str, "folder of the results"]
    shards: Shards
    images: Annotated[Count, "images in all results, including those of earlier runs"]
    compared: Annotated[Count, "images of shards that have labels"]
    correct: Annotated[Count | None, "correct answers among those compared; null if there are none"]
    accuracy: Annotated[Share | None, "correct ÷ compared"]
    seconds: Annotated[Amount, "from the first read until the last label is in its file, without the start of devices"]
    writing_seconds: Annotated[Amount, "part of this time spent on writing results and checksums while devices work"]
    classified: Annotated[Classified | None, "what this run classified; null if earlier runs had finished all"]
    devices: list[Device]


MOST = 2**63 - 1
Text = Annotated[str, Length(0, 200)]


class Identity(TypedDict):
    """The network, weights and precision that computed the results; a change in any of them may change the results."""

    network: Annotated[Text, "its name"]
    weights: Annotated[Sha256, "SHA-256 of the weights file"]
    precision: Annotated[Text, "the arithmetic"]
    classes: Annotated[int, Range(1, 1 << 20), "logits of an image"]


class Results(TypedDict):
    """The SHA-256 of each result file of a shard."""

    labels: Annotated[Sha256, "SHA-256 of NAME.labels.npy"]
    logits: NotRequired[Annotated[Sha256, "SHA-256 of NAME.logits.npy, with `--logits`"]]


class Receipt(TypedDict):
    """Images, origin and hashes of a shard's stored results (`classify SHARD… --out DIR`: DIR/NAME.json)."""

    schema: Literal["lenet5-inference/receipt/1"]
    shard: Annotated[str, "the file of the images"]
    size: Annotated[int, Range(0, MOST), "its size in bytes"]
    mtime_ns: Annotated[int, Range(-MOST, MOST), "when it was last written, in ns since 1970"]
    first: Annotated[int, Range(0, MOST), "number of the first image that was classified"]
    images: Annotated[int, Range(1, MOST), "number of images that were classified"]
    correct: Annotated[Annotated[int, Range(0, MOST)] | None, "correct labels; null if the true labels are unknown"]
    identity: Identity
    sha256: Results


OpenSeconds = TypedDict(
    "OpenSeconds", {"IDX": AboveZero, "IDX, gzip": AboveZero, "NPY": AboveZero, "HDF5": AboveZero}
)  # by format


class Cluster(TypedDict):
    """Speed at which Dask workers answer requests that contain no images, for one number of workers."""

    workers: Positive
    labels: Annotated[Positive, "labels in each answer"]
    pieces: Annotated[Positive, "number of requests"]
    pieces_per_s: Annotated[AboveZero, "requests answered per second"]


class ClassifyCosts(TypedDict):
    """Costs of shards, stored results and Dask (`python -m docs.measure.classify_costs --json FILE`)."""

    schema: Literal["lenet5-inference/classify-costs/1"]
    date: str
    cpu: Processor
    open_s: Annotated[OpenSeconds, "seconds of opening one shard, by its format"]
    store_s: Annotated[AboveZero, "seconds of storing 10,485,760 labels in ten pieces, with their receipt"]
    hash_gbytes_per_s: Annotated[AboveZero, "speed of checking results"]
    cluster: Annotated[list[Cluster], Length(1), "idle workers on this machine that answer pieces through Dask"]


class Run(TypedDict):
    """One run of `classify`, with its devices and speed."""

    what: str
    arithmetic: Annotated[str, "the precision and what computes in it"]
    devices: Annotated[list[str], Length(1), "names of the cards or processors"]
    images: Positive
    images_per_s: AboveZero
    gbytes_per_s: AboveZero
    limit: Annotated[str, "what limited the run, as in classify's report"]


class Goal(TypedDict):
    """A required figure beside the measured one."""

    what: str
    asked: Annotated[AboveZero, "the required figure"]
    measured: float
    unit: Annotated[str, "empty for a ratio, which must be at least `asked`; other figures must be at most `asked`"]


class Scale(TypedDict):
    """Speeds of several runs of classify, and the required ones (`python -m tests.classify.scale … --json FILE`)."""

    schema: Literal["lenet5-inference/scale/1"]
    date: str
    cpu: Processor
    runs: Annotated[list[Run], "in the order in which they were made"]
    goals: Annotated[list[Goal], "required figures beside the measured ones"]


class Predict(TypedDict):
    """Summary of a run: device, time, images and pictures (`predict --json FILE`); the answers are in `--out`."""

    schema: Literal["lenet5-inference/predict/1"]
    network: str
    precision: Precision
    device: str
    why_cpu: Annotated[str | None, "why `--device auto` chose the CPU; null if it did not"]
    images: Annotated[Positive, "images classified"]
    seconds: Amount
    pictures: Annotated[Count, "number of picture files; arrays are not counted"]
    unreadable: Annotated[Count, "pictures that cannot be read"]
    negated: Annotated[Count, "pictures in which dark and light were exchanged"]
    animated: Annotated[Count, "pictures of which the first frame is classified"]
    blank: Annotated[Count, "pictures of one colour"]
    doubtful: Annotated[Count, "pictures with a note"]
    brightness: Annotated[Amount, "mean of all pixels, from 0 to 255"]
    note: Annotated[str | None, "remark on an unusual brightness, else null"]
    written: list[str]


Answer = TypedDict(
    "Answer",
    {
        "path": Annotated[str, "path of the picture, as given"],
        "label": Annotated[int, Range(0, 255)],
        "class": NotRequired[
            Annotated[str, "left out if the weights name no classes; `unsure` below `--min-confidence`"]
        ],
        "probability": Annotated[Share | None, "null if it is no number"],
        "note": Annotated[str, "why the answer is doubtful; empty if it is not"],
    },
)  # a line of JSON for a picture (`predict -`); options add fields: docs/predict.md


class Unreadable(TypedDict):
    """A line of JSON for a picture that cannot be read (`predict -`)."""

    path: Annotated[str, "path of the picture, as given"]
    error: Annotated[str, "one line, with a remedy"]
