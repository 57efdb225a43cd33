"""Build and print the report of ``classify``: images classified, speed, and what limited it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from app.classify.outputs import OutputFolder
from app.classify.pieces import ActivitySeconds, DeviceInfo, Piece, PieceResult
from app.network.network import Network
from app.network.weights import Weights
from app.records.classify import Classified, Classify, Device, LaneSeconds, Rates
from app.terminal.text import WIDTH, Column, fields, paragraph, table

# Bottleneck → what the report says of it, and what would help.
LIMITS = {
    "disk": "reading the files: faster storage helps, or files in memory",
    "decompression": "decompression: more cores help, and more shards at a time",
    "bus": "the bus: the card's copies of the images take longer than its kernels",
    "kernels": "the kernels: a faster --precision helps, or more GPUs",
    "compute": "compute: more cores help, or a GPU",
    "output": "writing the results: a faster disk for --out helps",
}


@dataclass
class ImageTotals:
    """Images that one device or all devices classified, their bytes, and seconds of the threads that fed them."""

    images: int = 0
    nbytes: int = 0
    seconds: ActivitySeconds = field(default_factory=ActivitySeconds)

    def add(self, piece: Piece, result: PieceResult) -> None:
        """Add the images and seconds of a piece."""
        self.images += piece.count
        self.nbytes += piece.nbytes
        self.seconds.add(**vars(result.seconds))

    @property
    def device_seconds(self) -> float:
        """Return the seconds for which threads waited for the device or computed on it."""
        return self.seconds.wait + self.seconds.compute

    def bottleneck(self, device_limit: str) -> str:
        """Return what took the most time, a key of ``LIMITS``: disk, decompression or ``device_limit``.

        device_limit: the key for time spent on the device, such as ``bus`` or ``kernels``.
        """
        spent = {"disk": self.seconds.read, "decompression": self.seconds.decompress, device_limit: self.device_seconds}
        return max(spent, key=spent.__getitem__)


@dataclass
class Totals:
    """Totals so far. devices: (host, device) → its totals. whole: of all devices. writing: seconds of writing files."""

    devices: dict[tuple[str, str], tuple[DeviceInfo, ImageTotals]] = field(default_factory=dict)
    whole: ImageTotals = field(default_factory=ImageTotals)
    writing: float = 0.0

    def add(self, piece: Piece, result: PieceResult) -> None:
        """Add the images and seconds of a piece."""
        device_info = result.device_info
        _, share = self.devices.setdefault((device_info.host, device_info.device), (device_info, ImageTotals()))
        for each in (share, self.whole):
            each.add(piece, result)

    def bottleneck(self, seconds: float) -> str:
        """Return what limited a run of ``seconds`` seconds, a key of ``LIMITS``."""
        if self.writing > seconds / 2:
            return "output"
        slowest = max(self.devices.values(), key=lambda pair: pair[1].device_seconds)[0]
        return self.whole.bottleneck(slowest.limit)


def build_report(
    network: Network, weights: Weights, results: OutputFolder, unreadable: Sequence[str], tally: Totals, seconds: float
) -> Classify:
    """Return a run's report as a record. unreadable: reason for each unreadable shard. seconds: the run's duration."""
    receipts, kept = results.receipts, results.kept
    known = [receipt for receipt in receipts.values() if receipt["correct"] is not None]
    compared, correct = sum(one["images"] for one in known), sum(one["correct"] or 0 for one in known)
    return {
        "schema": "lenet5-inference/classify/1",
        "network": {"name": network.name, "input_shape": [*network.input_shape]},
        "weights": {"path": str(weights.path), "sha256": weights.sha256},
        "arithmetic": results.identity["precision"],
        "out": str(results.folder),
        "shards": {"classified": len(receipts) - len(kept), "kept": len(kept), "unreadable": [*unreadable]},
        "images": sum(receipt["images"] for receipt in receipts.values()),
        "compared": compared,
        "correct": correct if compared else None,
        "accuracy": correct / compared if compared else None,
        "seconds": seconds,
        "writing_seconds": tally.writing,
        "classified": {**_throughput_record(tally.whole, seconds), "limit": tally.bottleneck(seconds)}
        if tally.devices
        else None,
        "devices": [
            _device_record(device_info, share, seconds) for _, (device_info, share) in sorted(tally.devices.items())
        ],
    }


def _device_record(device_info: DeviceInfo, share: ImageTotals, seconds: float) -> Device:
    return {
        "host": device_info.host,
        "device": device_info.device,
        "name": device_info.name,
        "arithmetic": device_info.arithmetic,
        "lanes": device_info.lanes,
        "limit": share.bottleneck(device_info.limit),
        **_throughput_record(share, seconds),
        "lane_seconds": cast(LaneSeconds, vars(share.seconds)),
    }


def _throughput_record(share: ImageTotals, seconds: float) -> Rates:
    return {
        "images": share.images,
        "images_per_s": share.images / seconds,
        "gbytes_per_s": share.nbytes / 1e9 / seconds,
    }


def as_text(report: Classify, width: int = WIDTH) -> str:
    """Return the report as text without colours. width: of a line, in characters."""
    shards = report["shards"]
    title = f"{report['network']['name']}: {_format_count(report['images'], 'image')} in "
    title += _format_count(shards["classified"] + shards["kept"], "shard")
    pairs = [
        ("weights", f"{report['weights']['path']} (sha256 {report['weights']['sha256'][:12]}…)"),
        ("arithmetic", report["arithmetic"]),
        ("results", report["out"]),
    ]
    if shards["kept"]:
        pairs.append(("kept", f"{_format_count(shards['kept'], 'shard')} of an earlier run, checked and left alone"))
    if shards["unreadable"]:
        pairs.append(("unreadable", _format_count(len(shards["unreadable"]), "shard")))
    blocks = [[*paragraph(title, width), *fields(pairs, width)]]
    if report["correct"] is not None:
        share = report["correct"] / report["compared"]
        right = f"{report['correct']:,} / {report['compared']:,} correct = {share:.2%}"
        blocks.append(paragraph(f"Accuracy: {right}", width))
    if report["classified"] is not None:
        blocks += [_speed_lines(report, report["classified"], width)]
        blocks += [paragraph(f"limited by {LIMITS[report['classified']['limit']]}", width)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _speed_lines(report: Classify, whole: Classified, width: int) -> list[str]:
    columns = [
        Column("device", left=True),
        *map(Column, ("images", "images/s", "GB/s")),
        Column("limited by", left=True),
        Column("lanes", optional=1),
    ]
    several = len({row["host"] for row in report["devices"]}) > 1
    rows = [
        [
            f"{row['host']} {row['device']}" if several else row["device"],
            f"{row['images']:,}",
            f"{row['images_per_s']:,.0f}",
            f"{row['gbytes_per_s']:.3g}",
            row["limit"],
            f"{row['lanes']}",
        ]
        for row in report["devices"]
    ]
    if len(rows) > 1:
        rates = [f"{whole['images']:,}", f"{whole['images_per_s']:,.0f}", f"{whole['gbytes_per_s']:.3g}"]
        rows.append(["together", *rates, whole["limit"], ""])
    names = ", ".join(sorted({row["name"] for row in report["devices"]}))
    head = f"{_format_count(whole['images'], 'image')} in {report['seconds']:,.2f} s (files → labels in files; {names})"
    return [*paragraph(head, width), *table(columns, rows, width)]


def _format_count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
