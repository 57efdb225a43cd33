"""Run ``main.py classify`` as a user does, on seven shards for a tiny network; check what it writes and prints."""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from app.network.weights import save_weights
from data_tools.idx import write_idx
from tests.support.networks_for_tests import FLAT, random_graph, random_images
from tests.support.shell import COMMAND, INTERRUPTIBLE, wait_for

IN_SHARD = 10_000
SHARDS = [f"{letter}.idx" for letter in "abcdefg"]
SECONDS = 90.0
HASTE = {
    # Dask then looks for silent workers every second, and gives them 5 s; on a busy machine others may be silent, too.
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "1s",
    # All faults may meet the same images, which would be given up.
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "20",
}


def write_shards(folder: Path) -> None:
    """Write seven shards of 10,000 images, and weights."""
    save_weights(folder / "own.h5", random_graph(FLAT).parameters, network=FLAT)
    images = random_images(FLAT, IN_SHARD * len(SHARDS))[:, 0]
    for number, name in enumerate(SHARDS):
        write_idx(folder / name, images[number * IN_SHARD : (number + 1) * IN_SHARD])


def check_notes(err: str, faults: Sequence[str], device: str) -> None:
    """Check that standard error has a line for each process that ended, at least one for each fault, and nothing else.

    device: a pattern for the names of the devices.
    """
    note = rf"note: the process {device} ended, or was silent for too long: a new one takes over"
    strange = [line for line in err.splitlines() if not re.fullmatch(note, line)]
    assert not strange, f"lines on stderr that are no notes: {strange}; all of it:\n{err}"
    assert err.count("\n") >= len(faults), f"too few notes for {faults}:\n{err}"


def labels(results: Path) -> dict[str, bytes]:
    """Return the content of each shard's labels file, by shard, for the shards that have one."""
    return {path.name.removesuffix(".labels.npy"): path.read_bytes() for path in results.glob("*.labels.npy")}


class Run(AbstractContextManager["Run"]):
    """A run on files of ``shards``, in a separate session, which identifies its processes.

    own: an empty folder for the run; ``results`` in it is --out. faults: faults of ``worker_faults``, in order. slow:
    extra seconds for each read of a worker. variables: of the environment.
    """

    def __init__(
        self,
        shards: Path,
        own: Path,
        *arguments: str,
        faults: Sequence[str] = (),
        slow: float = 0.0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.results, self._temporary, self._deeds = own / "results", own / "temporary", own / "deeds"
        for folder in (self._temporary, self._deeds):
            folder.mkdir(parents=True, exist_ok=True)
        for number, deed in enumerate(faults):
            (self._deeds / f"{number}-{deed}").touch()
        environment = os.environ | {"TMPDIR": str(self._temporary), "FAULTS": str(self._deeds), "SLOW": str(slow)}
        if faults or slow:
            environment |= {"DASK_DISTRIBUTED__WORKER__PRELOAD": "['tests.support.worker_faults']"}
        if "SIGSTOP" in faults:
            environment |= HASTE
        base = [*COMMAND, "classify", "--weights", "own.h5", "--out", str(self.results)]
        self.process = subprocess.Popen(
            [*base, *arguments],
            cwd=shards,
            env=environment | dict(variables or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=INTERRUPTIBLE,
        )

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return exit code, output and errors. Check that no process, file or fault is left over."""
        out, err = self.process.communicate(timeout=SECONDS)
        told = f"exit code {self.process.returncode}, stderr:\n{err}"
        wait_for(lambda: not self.processes(), 5.0, told)  # some end with the first one, a moment later
        left = sorted(str(path.relative_to(self._temporary)) for path in self._temporary.rglob("*"))
        assert not left, f"left in TMPDIR: {left}; {told}"
        undone = sorted(path.name for path in self._deeds.iterdir())
        assert not undone, f"faults that did not happen: {undone}; {told}"
        return self.process.returncode, out, err

    def __exit__(self, *_: object) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def processes(self) -> list[int]:
        """Return the ids of the session's processes that have not ended."""
        return [pid for pid, session in _sessions() if session == self.process.pid]

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition is met. The run must not end before."""
        wait_for(lambda: condition() or self.process.poll() is not None, SECONDS)
        assert self.process.poll() is None, self.process.communicate()

    def listening(self) -> set[str]:
        """Return the addresses on which the processes listen, as the system writes them: ``0100007F`` is 127.0.0.1."""
        sockets = set()
        for pid in self.processes():
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    sockets.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
        found = set()
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text("ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and words[9] in sockets:
                    found.add(words[1].partition(":")[0])
        return found


def _sessions() -> Iterator[tuple[int, int]]:
    """Yield (process id, session id) of every running process."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, session = (folder / "stat").read_text("utf-8").rpartition(")")[2].split()[:4]
            if state not in "ZX":
                yield int(folder.name), int(session)
