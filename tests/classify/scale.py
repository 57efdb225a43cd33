"""Measure ``classify``: ``python -m tests.classify.scale speed|memory|gzip|cluster|devices|workers``.

Every part takes less than a minute. Shards lie in memory-backed files (``--folder``, default /dev/shm) and are links to
one file, so that many of them need little room; the results go to the same folder. docs/scale.md is made from the
documents that ``--json`` writes.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from app.base.processor import core_count
from app.cuda.device import describe_cpu
from app.files.writing import json_text
from app.lab.document import utc_date
from app.records.classify import Goal, Run, Scale
from app.records.parts import Processor
from data_tools.dataset import load_fashion_mnist
from data_tools.idx import write_idx_parts
from tests.support.dask_processes import dask_cluster

ROOT = Path(__file__).parents[2]
RUNS: list[Run] = []
GOALS: list[Goal] = []


def record_goal(what: str, least: float, measured: float, unit: str = "") -> None:
    """Print and store a measured figure and its goal: at least ``least``, or at most if it has a unit."""
    print(f"{what}: {measured:,.3f} {unit}, asked for: {'at most' if unit else 'at least'} {least:,}", flush=True)
    GOALS.append({"what": what, "asked": least, "measured": measured, "unit": unit})


def run_program(*arguments: object, prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Run main.py and return its report. prefix: command that starts it, such as taskset."""
    command = [*prefix, sys.executable, "main.py", *map(str, arguments), "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def write_shards(folder: Path, name: str, repeats: int, links: int) -> str:
    """Write the 10,000 test images ``repeats`` times into an IDX file with ``links`` names; return their pattern."""
    images = load_fashion_mnist("test").images[:, 0]
    first = folder / name.format(0)
    write_idx_parts(first, (repeats * len(images), *images.shape[1:]), [images] * repeats)
    for number in range(1, links):
        os.link(first, folder / name.format(number))
    return str(folder / name.format("*"))


def run_classify(what: str, pattern: str, folder: Path, *options: object, prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Run ``classify``, print and store its speed under the name ``what``; return the report."""
    found = run_program("classify", pattern, "--out", folder / "results", "--overwrite", *options, prefix=prefix)
    whole = found["classified"]
    names = sorted({row["name"] for row in found["devices"]})
    RUNS.append(cast(Run, {"what": what, "arithmetic": found["arithmetic"], "devices": names, **whole}))
    rate = f"{whole['images_per_s'] / 1e6:.2f} million/s, {whole['gbytes_per_s']:.1f} GB/s"
    writing = f"{found['seconds']:.2f} s, {found['writing_seconds']:.2f} s of writing"
    name = " ".join(["classify", *map(str, options)])
    print(f"{name}: {whole['images']:,} images, {rate}, {writing}, limited by {whole['limit']}", flush=True)
    for row in found["devices"]:
        spent = ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in row["lane_seconds"].items())
        print(
            f"  {row['device']}: {row['images_per_s'] / 1e6:.2f} million/s; {row['lanes']} lanes: {spent}", flush=True
        )
    return found


def measure_speed(folder: Path) -> None:
    """Measure uncompressed shards in each precision; goal: at least 90 % of the rate of ``--cycle``, without files."""
    pattern = write_shards(folder, "{}-images", 1000, 10)
    for precision in ("fp16", "fp32x"):
        cycled = run_program("--batch", 100_000_000, "--cycle", "--precision", precision)["images_per_s"]
        found = run_classify(f"one GPU, {precision}", pattern, folder, "--precision", precision)
        share = found["classified"]["images_per_s"] / cycled
        record_goal(f"one GPU, {precision}, beside --cycle ({cycled / 1e6:.2f} million/s)", 0.9, share)


def measure_memory(folder: Path) -> None:
    """Measure host memory for a sparse shard of 100 million images; goal: at most 1 GiB more than for one image."""
    peaks = []
    for count in (1, 100_000_000):
        with (folder / "sparse").open("wb") as file:
            file.write(b"\x00\x00\x08\x03" + b"".join(size.to_bytes(4, "big") for size in (count, 28, 28)))
            file.truncate(16 + count * 784)
        # In a new process, whose only child is the program, the largest child's peak is the program's.
        measure = f"from tests.classify import scale; scale.print_peak_memory({str(folder)!r})"
        done = subprocess.run([sys.executable, "-c", measure], cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
        print(f"{count:,} images: peak of {peaks[-1] / 1024:,.0f} MiB", flush=True)
    record_goal("host memory for 100 million images, above a run on one", 1024, (peaks[1] - peaks[0]) / 1024, "MiB")


def print_peak_memory(folder: str) -> None:
    """Classify the sparse shard in ``folder``; print the program's largest resident set in KiB."""
    run_program("classify", Path(folder) / "sparse", "--out", Path(folder) / "results", "--overwrite")
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)


def measure_gzip(folder: Path) -> None:
    """Measure compressed shards; goal: all cores decompress for at least 85 % of the time."""
    cores = len(os.sched_getaffinity(0))
    found = run_classify(f"gzip, {cores} cores", write_shards(folder, "{}-images.gz", 10, 24 * cores), folder)
    (row,) = found["devices"]
    share = row["lane_seconds"]["decompress"] / (row["lanes"] * found["seconds"])
    record_goal(f"share of the time that {row['lanes']} lanes decompress", 0.85, share)


def measure_cluster(folder: Path) -> None:
    """Measure one device through Dask; goal: at least 97 % of the rate of one process without Dask."""
    pattern = write_shards(folder, "{}-images", 1000, 10)
    with dask_cluster(folder) as running:
        running.start_worker()
        rates = [
            run_classify(what, pattern, folder, *options)["classified"]["images_per_s"]
            for what, options in [("one process", []), ("through Dask", ["--scheduler", running.address])] * 2
        ]
    record_goal("through Dask, beside one process", 0.97, max(rates[1::2]) / max(rates[::2]))


def measure_devices(folder: Path) -> None:
    """Measure all GPUs; goal: at least 95 % of their number times the rate of one, limited by files or by kernels."""
    for links, network, precision in ((16, "lenet5", "fp16"), (4, "fa19", "fp32x")):
        pattern = write_shards(folder, network + "-{}", 1000, links)
        options = ("--network", network, "--precision", precision)
        rates = [
            run_classify(f"--devices {which}, {network}", pattern, folder, "--devices", which, *options)
            for which in ("0", "all", "0", "all")
        ]
        one, all_ = (max(found["classified"]["images_per_s"] for found in rates[at::2]) for at in (0, 1))
        count = len(rates[1]["devices"])
        record_goal(f"{count} GPUs, beside one of them, {network}", 0.95 * count, all_ / one)


def measure_workers(folder: Path) -> None:
    """Measure two workers on two cores; goal: at least 1.7 times the rate of one on one core."""
    pattern = write_shards(folder, "{}-images", 4, 2)
    one, two = (",".join(map(str, sorted(os.sched_getaffinity(0))[:count])) for count in (1, 2))
    rates = [
        run_classify(what, pattern, folder, *options, prefix=["taskset", "-c", cores])["classified"]["images_per_s"]
        for what, cores, options in [
            ("CPU, one core", one, ["--device", "cpu"]),
            ("CPU, --workers 2 on two cores", two, ["--workers", "2"]),
        ]
        * 2
    ]
    record_goal("two workers on two cores, beside one core", 1.7, max(rates[1::2]) / max(rates[::2]))


def main() -> None:
    functions = (measure_speed, measure_memory, measure_gzip, measure_cluster, measure_devices, measure_workers)
    parts: dict[str, Callable[[Path], None]] = {each.__name__.removeprefix("measure_"): each for each in functions}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=parts)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    for name in options.parts:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            parts[name](Path(folder))
    if options.json is not None:
        document: Scale = {
            "schema": "lenet5-inference/scale/1",
            "date": utc_date(),
            "cpu": cast(Processor, describe_cpu(core_count())),
            "runs": RUNS,
            "goals": GOALS,
        }
        options.json.write_text(json_text(document), encoding="utf-8")


if __name__ == "__main__":
    main()
