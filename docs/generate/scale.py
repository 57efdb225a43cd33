"""Write the blocks of docs/scale.md: throughput of stored runs of ``classify``, and estimates for larger jobs."""

from collections.abc import Sequence

from app.classify.pieces import GPU_PIECE
from app.lab.document import Row
from docs.generate.figures import COSTS, CYCLE, SCALE, Figures, command_for_file
from docs.generate.tables import markdown_table, wrap_paragraph
from docs.measure.classify_costs import PIECES

IMAGE_BYTES = 28 * 28
SHARD_IMAGES = 10_000_000
JOBS = (10**9, 10**12)
PORT_GBITS = (100, 400)  # nominal rates of network ports, Gb/s
CARDS = (1, 8, 64)
STORED = PIECES * GPU_PIECE  # labels that the measured storing stored
CARD, *OTHERS = (name for name, (schema, _) in SCALE.items() if schema == "scale")
NOT_YET = "Not measured yet: run `{}`."


def throughput_table(figures: Figures) -> str:
    """Return a table with the fastest of all runs of the same name, and the commands for runs not yet measured."""
    rows, missing = [], []
    for name in (CARD, *OTHERS):
        document = figures.document_or_none(name)
        if document is None:
            missing.append(NOT_YET.format(command_for_file(name)))
            continue
        fastest: dict[str, Row] = {}
        for run in document["runs"]:
            fastest[run["what"]] = max(fastest.get(run["what"], run), run, key=lambda one: one["images_per_s"])
        for what, run in fastest.items():
            rates = [f"{run['images']:,}", f"{run['images_per_s']:,.0f}", f"{run['gbytes_per_s']:.2f}"]
            rows.append([what, ", ".join(run["devices"]), run["arithmetic"], *rates, run["limit"], document["date"]])
    head = ["run", "device", "arithmetic", "images", "images/s", "GB/s", "limited by", "measured"]
    return "\n\n".join([*([markdown_table(head, rows, 3)] if rows else []), *missing])


def goals_table(figures: Figures) -> str:
    """Return a table of required and measured figures; those that miss the requirement are bold."""
    rows = []
    for document in filter(None, map(figures.document_or_none, (CARD, *OTHERS))):
        for goal in document["goals"]:
            most = bool(goal["unit"])
            met = goal["measured"] <= goal["asked"] if most else goal["measured"] >= goal["asked"]
            told = f"{goal['measured']:,.4g} {goal['unit']}".strip()
            asked = f"at {'most' if most else 'least'} {goal['asked']:,.4g} {goal['unit']}".strip()
            rows.append([goal["what"], asked, told if met else f"**{told}**"])
    return markdown_table(["what", "asked for", "measured"], rows) if rows else "Not measured yet."


def costs_table(figures: Figures) -> str:
    """Return a table of ``classify``'s costs apart from reading and computing, and the command that measures them."""
    found = figures[COSTS]
    rows = [[f"opening a shard, {name}", f"{seconds * 1e3:.2f} ms"] for name, seconds in found["open_s"].items()]
    rows += [
        [f"storing {STORED:,} labels, checksum and receipt", f"{found['store_s'] * 1e3:.1f} ms"],
        ["checking results (`--resume`)", f"{found['hash_gbytes_per_s']:.2f} GB/s"],
    ]
    for row in found["cluster"]:
        what = f"pieces through Dask, {row['labels']:,} label{'s' * (row['labels'] > 1)} each"
        rows.append([what, f"{row['pieces_per_s']:,.0f} a second"])
    where = f"{found['cpu']['name']}, {found['cpu']['threads']} threads, {found['date']}"
    return f"{markdown_table(['what', where], rows)}\n\n`{command_for_file(COSTS)}` measured these costs."


def job_times_table(figures: Figures) -> str:
    """Return a table of how long each part of a job of 10^9 or 10^12 images would take if it ran alone."""
    rate, source = _gpu_rate_and_source(figures)
    found = figures[COSTS]
    shards = [-(-images // SHARD_IMAGES) for images in JOBS]
    seconds_per_image = {
        **{f"{count} H100{'s' * (count > 1)} at that rate": 1 / rate / count for count in CARDS},
        **{f"reading through one port of {bits} Gb/s": IMAGE_BYTES * 8 / bits / 1e9 for bits in PORT_GBITS},
        "opening the shards (NPY)": found["open_s"]["NPY"] / SHARD_IMAGES,
        "pieces through one scheduler": 1 / _label_transfer_rate(found),
        "storing labels on the client": 1 / _label_storing_rate(found),
        "checking all labels (`--resume`)": 1 / found["hash_gbytes_per_s"] / 1e9,
    }
    rows = [
        ["pixels", *(_format_bytes(images * IMAGE_BYTES) for images in JOBS)],
        [f"shards of {SHARD_IMAGES:,} images", *(f"{count:,}" for count in shards)],
        ["pieces", *(f"{count * -(-SHARD_IMAGES // GPU_PIECE):,}" for count in shards)],
        ["labels", *(_format_bytes(images) for images in JOBS)],
        *([what, *(_format_time(images * one) for images in JOBS)] for what, one in seconds_per_image.items()),
    ]
    head = ["part", *(f"{images:,} images" for images in JOBS)]
    told = wrap_paragraph(f"One H100 classifies {rate:,.0f} images/s: {source}.")
    return f"{told}\n\n{markdown_table(head, rows)}"


def throughput_limits_table(figures: Figures) -> str:
    """Return a table of parts that limit a cluster: images/s that each processes, and H100s that it can feed."""
    rate, _ = _gpu_rate_and_source(figures)
    found = figures[COSTS]
    carried = {
        **{f"one port of {bits} Gb/s": bits * 1e9 / 8 / IMAGE_BYTES for bits in PORT_GBITS},
        "one scheduler and client": _label_transfer_rate(found),
        "storing labels on the client": _label_storing_rate(found),
    }
    rows = [[what, f"{n:,.0f}", f"{n / rate:.2f}"] for what, n in sorted(carried.items(), key=lambda pair: pair[1])]
    return markdown_table(["part", "images/s", "H100s that it keeps busy"], rows)


def _gpu_rate_and_source(figures: Figures) -> tuple[float, str]:
    """Return the images per second of an H100, and a phrase that names the source of the figure."""
    document = figures.document_or_none(CARD)
    if document is not None:
        run = max(document["runs"], key=lambda one: one["images_per_s"])
        return run["images_per_s"], f"the fastest run above ({run['arithmetic']})"
    return figures[CYCLE]["images_per_s"], "streamed from memory (`--cycle --precision fp16`), until files are measured"


def _label_transfer_rate(found: Row) -> float:
    """Return for how many images per second Dask can transfer the labels. found: the JSON document of costs."""
    return float(max(found["cluster"], key=lambda row: row["labels"])["pieces_per_s"]) * GPU_PIECE


def _label_storing_rate(found: Row) -> float:
    return STORED / float(found["store_s"])


def _format_bytes(count: float) -> str:
    return _format_in_unit(count, ((1e12, "TB"), (1e9, "GB")))


def _format_time(seconds: float) -> str:
    return _format_in_unit(seconds, ((86400, "days"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")))


def _format_in_unit(value: float, units: Sequence[tuple[float, str]]) -> str:
    size, unit = next((pair for pair in units if value >= pair[0]), units[-1])
    return f"{value / size:,.3g} {unit}" if value / size < 1000 else f"{value / size:,.0f} {unit}"
