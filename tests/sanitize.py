"""Run kernels under compute-sanitizer's four tools: ``python -m tests.sanitize`` (``make sanitize``).

Every kernel's small tests, small main jobs and a small training of every network, with CuPy's memory pool off (a pool
hides overruns); then kernels with planted errors, which the same tools must catch. Needs a GPU and compute-sanitizer,
which comes with the CUDA toolkit. Checks run side by side, each in processes of its own. Where the GPU tests ran
before, the kernels lie ready in the cache. A check that was clean is skipped by the next call, as long as no file of
the tree changes; ``--part 2/4`` runs a quarter.

Blind spots: racecheck sees shared memory only, and not what cp.async writes; initcheck sees global memory only;
memcheck does not see overruns within one allocation; constant memory and the copies to it are seen by none. Of wgmma
and bulk copies, what they read and write in shared memory is seen by none; tests fill it with NaN instead.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import perf_counter

from app.base.errors import UserError
from app.terminal.console import Parser, run_guarded, whole_number_type
from tests.parts import Finished, add_options
from tests.support.sampling import part_of, worker_count
from tests.support.training_for_tests import write_images

ROOT = Path(__file__).parents[1]
TOOLS = ("racecheck", "memcheck", "initcheck", "synccheck")  # the slowest first
KINDS = ("jobs", "training", "kernels", "planted")
PLANTED = {"out_of_bounds": "memcheck", "race": "racecheck", "uninitialised": "initcheck"}
PYTEST = ("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-p", "no:randomly")
SMALL = "test_small or numpy or nan"  # selects the small tests of every kernel
AT_ONCE = 20  # small tests per process
CAUGHT = re.compile(r"[A-Z]+ SUMMARY: [1-9].*")

Program = tuple[str, tuple[str, ...]]
"""A description, and arguments of Python."""


@dataclass(frozen=True)
class Check:
    """A program under a tool. planted: whether the tool must find an error, else there must be none."""

    tool: str
    name: str
    arguments: tuple[str, ...]
    planted: bool = False

    def __str__(self) -> str:
        return f"{'planted: ' * self.planted}{self.tool}: {self.name}"

    def run(self, stop: Event) -> tuple[bool, str]:
        """Run the program under the tool; return whether the result is as expected, and a text. stop: ends the run."""
        tool = ["compute-sanitizer", "--tool", self.tool, "--error-exitcode", "9", sys.executable]
        code, said = run_alone([*tool, *self.arguments], stop)
        if not self.planted:
            return code == 0, f"FAILED\n{said}" if code else "clean"
        # The tool itself must have counted an error: a program that fails for another reason proves nothing.
        found = CAUGHT.search(said)
        return (True, f"caught: {found[0]}") if code and found else (False, f"MISSED\n{said}")


def run_alone(command: Sequence[str], stop: Event) -> tuple[int, str]:
    """Run a command in a new process group, then kill that group; return exit code and output. stop: ends it.

    A signal that a tool sends to its group then does not reach the caller. When a signal ends compute-sanitizer, it
    leaves a helper process behind.
    """
    said: str | None = None
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"LENET_NO_POOL": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with process:
        while said is None and not stop.is_set():
            with suppress(subprocess.TimeoutExpired):
                said, _ = process.communicate(timeout=0.2)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said or ""


def main_jobs() -> Iterator[Program]:
    """Yield main jobs: several networks and precisions, fused and unfused."""
    base = ("main.py", "--device", "cuda", "--repeat", "1", "--warmup", "1")
    few = ("--batch", "7", "--chunk", "3")
    # Blocks of pair kernels take two rounds and a last group of one image; the last block of products has seven images.
    many = ("--batch", "1687", "--chunk", "1687")
    for precision in ("fp16", "fp32x", *(["int8"] if _serves_int8() else [])):
        yield f"1,687 images, {precision}", (*base, *many, "--precision", precision)
    for network in ("fa19", "minidnn86", "mlp"):  # the first two enlarge images in the kernel of convolutions
        for precision in ("fp16", "fp32x"):
            yield f"{network}, {precision}", (*base, *few, "--network", network, "--precision", precision)
    yield "lenet5", (*base, *few)
    yield "lenet5, layer by layer", (*base, *few, "--no-fuse", "--conv", "constant", "--fc", "naive")


def _serves_int8() -> bool:
    asked = [sys.executable, "main.py", "graph", "--precision", "int8"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True).returncode == 0


def training_programs(folder: Path, tool: str) -> Iterator[Program]:
    """Yield the training kernels' tests, and a training of every network in batches of 8, 8 and 3 images."""
    yield "training kernels", (*PYTEST, "tests/training/test_gpu_training_kernels.py")
    data = ("--data", str(folder / "images"), "--labels", str(folder / "labels"))
    short = ("--images", "24", "--validation", "5", "--batch-size", "8", "--epochs", "1")
    for network in ("lenet5", "fa19", "k7", "minidnn86", "mlp"):
        output = ("--out", str(folder / f"{tool}_{network}.h5"))
        yield f"train {network}", ("main.py", "train", "--device", "cuda", "--network", network, *short, *data, *output)


def kernel_tests() -> Iterator[Program]:
    """Yield groups of every kernel's small tests."""
    tests = "tests/kernels/test_gpu_kernels.py"
    listed = subprocess.run(
        [sys.executable, *PYTEST, "--collect-only", "-k", SMALL, tests], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    found = [line for line in listed.stdout.splitlines() if line.startswith(f"{tests}::")]
    if not found:
        raise UserError(f"no small tests in {tests}: {listed.stdout}")
    for first in range(0, len(found), AT_ONCE):
        some = found[first : first + AT_ONCE]
        yield f"small tests {first + 1} to {first + len(some)}", (*PYTEST, *some)


def list_checks(tools: Sequence[str], kinds: Sequence[str], folder: Path) -> Iterator[Check]:
    """Yield the checks of these tools and kinds, the longest first. folder: has images and labels to train on."""
    small = [*kernel_tests()] if "kernels" in kinds else []
    for tool in tools:
        programs = [*main_jobs()] if "jobs" in kinds else []
        programs += training_programs(folder, tool) if "training" in kinds else ()
        yield from (Check(tool, *program) for program in [*programs, *small])
    if "planted" in kinds:
        for error, tool in PLANTED.items():
            if tool in tools:
                yield Check(tool, error, ("-m", "tests.planted", error), planted=True)


def run(todo: Sequence[Check], at_once: int, finished: Finished) -> int:
    """Run the checks, print each as it ends, and return how many failed."""
    begin, failed = perf_counter(), 0
    left = [check for check in todo if str(check) not in finished]
    print(f"{len(todo)} checks, {len(todo) - len(left)} of them clean before, {at_once} at once", flush=True)
    pool, stop = ThreadPoolExecutor(at_once), Event()
    try:
        running = {pool.submit(check.run, stop): check for check in left}
        for number, done in enumerate(as_completed(running), 1):
            check, (good, text) = running[done], done.result()
            print(f"{number}/{len(left)}, {perf_counter() - begin:.0f} s: {check}: {text}", flush=True)
            if good:
                finished.add(str(check))
            failed += not good
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)  # otherwise all queued checks would still run
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(prog="python -m tests.sanitize", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=whole_number_type(1), metavar="N", help="checks at once (default: what fits)")
    parser.add_argument("--tools", nargs="+", default=TOOLS, choices=TOOLS)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="K/N", help="one part of N")
    add_options(parser)
    options = parser.parse_args(arguments)
    if shutil.which("compute-sanitizer") is None:
        raise UserError("compute-sanitizer is not on PATH: install the CUDA toolkit, or add its bin folder")
    part, parts = options.part
    with tempfile.TemporaryDirectory() as name:
        write_images(Path(name))
        todo = [*list_checks(options.tools, options.kinds, Path(name))][part - 1 :: parts]
        failed = run(todo, options.jobs or worker_count(), Finished("sanitize", options.record, again=options.again))
    planted = sum(check.planted for check in todo)
    good = f"{len(todo) - planted} checks clean, {planted} planted errors caught"
    print(f"{failed} checks failed; the next call runs only these" if failed else good)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(run_guarded(main))
