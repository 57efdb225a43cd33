"""Define the JSON documents of ``bench --peers``: times of this program, PyTorch and JAX, and their best settings."""

from typing import Annotated, Literal, NotRequired, TypedDict

from app.records.derive import Length
from app.records.parts import Amount, Card, Count, Date, Positive, Precision, Samples, Sha256

Software = Annotated[dict[str, str], "package → version"]
Medians = Annotated[list[Amount], Length(2, 2)]
Engine = Annotated[str, "`ours`, `torch` or `jax`"]


class Quantiles(TypedDict):
    """Percentiles of a time in ms, by nearest rank; null where samples are too few: 10 for p10 and p90, 100 for p99."""

    p10: Amount | None
    p50: Annotated[Amount, "median"]
    p90: Amount | None
    p99: Amount | None
    runs: Annotated[Positive, "samples"]
    samples: NotRequired[Samples]


class Row(TypedDict):
    """Times of one engine in one precision, and how many of its labels are right."""

    engine: Engine
    setting: Annotated[str, "how PyTorch or JAX ran; for ours empty, or `dense`: sparse weights ran on dense kernels"]
    precision: Precision
    on_card_ms: Annotated[
        Quantiles | None,
        "images and labels on the card: 2 to 10 passes (as many as take 20 ms) enqueued back to back, from the first "
        "call until the device is idle, ÷ their number",
    ]
    end_to_end_ms: Annotated[
        Quantiles | None,
        "from the call, with bytes in page-locked memory and the device idle, to readable labels on the host",
    ]
    unsteady: Annotated[Count, "timed runs with other labels than the first"]
    note: str
    reason: Annotated[str, "why there are no times, else empty"]
    correct: Annotated[Count | None, "correct labels of the timed runs"]
    changed: Annotated[Count | None, "labels of the timed runs that differ from the float64 reference's"]
    largest_margin: Annotated[Amount | None, "largest float64 margin (best logit minus the second) of these labels"]
    wrong: Annotated[bool, "whether our labels differed too much or were unsteady (exit code 1)"]


class FastestPeer(TypedDict):
    """The fastest setting of PyTorch and JAX, and its time relative to ours."""

    setting: Annotated[str, "its setting"]
    ratio: Annotated[Amount, "its median ÷ ours; below 1, ours is slower"]


class Ratio(TypedDict):
    """Times of PyTorch and JAX relative to ours in one precision."""

    precision: Precision
    setting: NotRequired[Annotated[str, "setting of our row; missing if empty"]]
    against: Annotated[Precision, "precision of PyTorch and JAX"]
    on_card_ms: FastestPeer | None
    end_to_end_ms: FastestPeer | None
    reason: Annotated[str, "why there is no ratio, else empty"]


class Comparison(TypedDict):
    """Times of all engines for one network and batch size."""

    network: str
    digest: Annotated[Sha256, "SHA-256 of the network's layers"]
    images: Annotated[Positive, "images per batch"]
    rows: list[Row]
    ratios: Annotated[list[Ratio], "one for each of our rows that has times"]


class Peers(TypedDict):
    """Times of this program and of PyTorch and JAX at their best settings, on one card (`bench --peers`)."""

    schema: Literal["lenet5-inference/peers/2"]
    date: Date
    command: Annotated[str, "what measures this again"]
    device: Card
    software: Software
    rounds: Annotated[Positive, "number of rounds; each round measures every engine once"]
    comparisons: list[Comparison]
    notes: Annotated[list[str], "which systems have no rows, and why"]


class Search(TypedDict):
    """Times of all settings of PyTorch or JAX for one network, precision and batch size."""

    network: str
    digest: Annotated[Sha256, "SHA-256 of the network's layers"]
    precision: Precision
    images: Annotated[Positive, "images per batch"]
    engine: Engine
    software: Software
    ms: Annotated[dict[str, Medians], "setting → medians of a few runs, on the card and end to end"]
    failed: Annotated[dict[str, str], "setting → why it did not run"]


class PeerSettings(TypedDict):
    """The times of all settings of PyTorch and JAX on one card, from which `bench --peers` takes the best."""

    schema: Literal["lenet5-inference/peer-settings/1"]
    card: str
    searches: list[Search]
