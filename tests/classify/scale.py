"""Measure ``classify`` on this machine: ``python -m tests.classify.scale speed|memory|gzip|devices|tune``.

Every part takes less than a minute. Shards lie in memory-backed files (``--folder``, default /dev/shm) and are links to
one file, so that many of them need little room; the results go to the same folder.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

from app.classify import gpu_lanes
from app.classify.engine import Engine, EngineSettings
from app.classify.pieces import GPU_PIECE, Result, cut
from app.classify.runner import LocalRunner
from app.planning.choices import load_graph
from app.planning.request import NetworkRequest
from app.shards import find_shards, open_shard
from data_tools.dataset import load_fashion_mnist
from data_tools.idx import write_idx_parts

ROOT = Path(__file__).parents[2]


def program(*arguments: object) -> dict[str, Any]:
    """Run main.py and return its report."""
    command = [sys.executable, "main.py", *map(str, arguments), "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def shards(folder: Path, name: str, repeats: int, links: int) -> str:
    """Write the 10,000 test images ``repeats`` times into one IDX file, with ``links`` names; return their pattern."""
    images = load_fashion_mnist("test").images[:, 0]
    first = folder / name.format(0)
    write_idx_parts(first, (repeats * len(images), *images.shape[1:]), [images] * repeats)
    for number in range(1, links):
        os.link(first, folder / name.format(number))
    return str(folder / name.format("*"))


def classified(pattern: str, folder: Path, *options: object) -> dict[str, Any]:
    """Classify and print what it took; return the report."""
    found = program("classify", pattern, "--out", folder / "results", "--overwrite", *options)
    whole = found["classified"]
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


def speed(folder: Path) -> None:
    """Uncompressed shards beside --cycle, in each precision: at least 90 % of its rate is asked for."""
    pattern = shards(folder, "{}-images", 1000, 10)
    for precision in ("fp16", "fp32x"):
        cycled = program("--batch", 100_000_000, "--cycle", "--precision", precision)["images_per_s"]
        found = classified(pattern, folder, "--precision", precision)
        share = found["classified"]["images_per_s"] / cycled
        print(f"{precision}: --cycle {cycled / 1e6:.2f} million/s; classify reaches {share:.1%}", flush=True)


def memory(folder: Path) -> None:
    """A sparse shard of 100 million images: at most 1 GiB above a run on one image is asked for."""
    peaks = []
    for count in (1, 100_000_000):
        with (folder / "sparse").open("wb") as file:
            file.write(b"\x00\x00\x08\x03" + b"".join(size.to_bytes(4, "big") for size in (count, 28, 28)))
            file.truncate(16 + count * 784)
        # A process of its own, whose only child is the program: the peak is that of the largest child.
        measure = f"from tests.classify import scale; scale.peak({str(folder)!r})"
        done = subprocess.run([sys.executable, "-c", measure], cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
        print(f"{count:,} images: peak of {peaks[-1] / 1024:,.0f} MiB", flush=True)
    print(f"{(peaks[1] - peaks[0]) / 1024:,.0f} MiB above a run on one image")


def peak(folder: str) -> None:
    """Classify the sparse shard; print the program's largest resident set, in KiB."""
    program("classify", Path(folder) / "sparse", "--out", Path(folder) / "results", "--overwrite")
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)


def gzip(folder: Path) -> None:
    """Compressed shards: all cores busy with decompression, at least 85 %, is asked for."""
    found = classified(shards(folder, "{}-images.gz", 10, 24 * len(os.sched_getaffinity(0))), folder)
    (row,) = found["devices"]
    share = row["lane_seconds"]["decompress"] / (row["lanes"] * found["seconds"])
    print(f"the {row['lanes']} lanes decompress {share:.1%} of the time", flush=True)


def devices(folder: Path) -> None:
    """One GPU and all of them on the same shards: 1.9 times the rate is asked for from two."""
    pattern = shards(folder, "{}-images", 1000, 16)
    rates = [
        classified(pattern, folder, "--devices", which, "--precision", "fp16")["classified"]["images_per_s"]
        for which in ("0", "all", "0", "all")
    ]
    print(f"all GPUs: {max(rates[1::2]) / max(rates[::2]):.2f} times the rate of one", flush=True)


def tune(folder: Path) -> None:
    """Lanes, slots and images of a block: the rate of an engine alone, without files of results."""
    pattern = shards(folder, "{}-images", 1000, 3)
    opened = [open_shard(path) for path in find_shards([pattern])]
    graph = load_graph(NetworkRequest())[0]
    pieces = [piece for number, shard in enumerate(opened) for piece in cut(number, shard, 0, shard.count, GPU_PIECE)]
    for block, slots, lanes in product((4096, 8192, 16_384, 32_768), (2, 3), (4, 8, 12, 16)):
        gpu_lanes.BLOCK, gpu_lanes.SLOTS, gpu_lanes.LANES = block, slots, lanes
        gpu_lanes.BLOCK_BYTES = max(gpu_lanes.BLOCK_BYTES, block * 784)
        with Engine(EngineSettings(graph=graph, dtype="uint8", device="cuda", precision="fp16")) as engine:
            begin = perf_counter()
            spent = [result.seconds for _, result in LocalRunner(engine).run(pieces) if isinstance(result, Result)]
            seconds = perf_counter() - begin
        rate = sum(piece.count for piece in pieces) / seconds / 1e6
        read, wait = (sum(getattr(one, name) for one in spent) / seconds / lanes for name in ("read", "wait"))
        print(
            f"blocks of {block:,}, {slots} slots, {lanes} lanes: {rate:.1f} million/s, read {read:.0%} wait {wait:.0%}"
        )


def main() -> None:
    parts: dict[str, Callable[[Path], None]] = {part.__name__: part for part in (speed, memory, gzip, devices, tune)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=parts)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    options = parser.parse_args()
    for name in options.parts:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            parts[name](Path(folder))


if __name__ == "__main__":
    main()
