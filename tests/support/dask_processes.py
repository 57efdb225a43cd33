"""Start a scheduler and workers of Dask on 127.0.0.1, as a user does; they end with the block."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.shell import ROOT, wait_for


class Cluster:
    """A running Dask scheduler. scheduler: its process. address: where it listens."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "scheduler.json"
        self._folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._dask("scheduler", ROOT, "--port", "0")
        wait_for(lambda: self._file.exists() and self._file.read_text("utf-8").endswith("}"))
        self.address: str = json.loads(self._file.read_text("utf-8"))["address"]

    def start_worker(self, path: Path = ROOT, *, slow: float = 0.0) -> None:
        """Start a worker that finds Python modules in ``path``, and wait until it has joined the cluster.

        slow: extra seconds for each read of images, by ``worker_faults``.
        """
        name = str(len(self.workers))
        self.workers.append(self._dask("worker", path, "--nthreads", "2", "--no-nanny", "--name", name, slow=slow))
        log = self._folder / f"worker{name}.log"
        wait_for(lambda: "Registered to" in log.read_text("utf-8"))

    def _dask(self, what: str, path: Path, *options: str, slow: float = 0.0) -> subprocess.Popen[bytes]:
        name = what if what == "scheduler" else f"{what}{len(self.workers)}"
        command = [sys.executable, "-m", "dask", what, "--host", "127.0.0.1", "--no-dashboard"]
        modules = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])  # Dask may lie there
        variables = {"PYTHONPATH": modules, "DASK_TEMPORARY_DIRECTORY": str(self._folder)}
        if slow:
            command += ["--preload", "tests.support.worker_faults"]
            (self._folder / "none").mkdir(exist_ok=True)
            variables |= {"FAULTS": str(self._folder / "none"), "SLOW": str(slow)}
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, "--scheduler-file", str(self._file), *options],
                cwd=self._folder,
                env=os.environ | variables,
                stdout=log,
                stderr=log,
            )

    def end_workers(self) -> None:
        """Kill all workers, and wait until the scheduler has noticed."""
        self._kill(*self.workers)
        log = self._folder / "scheduler.log"
        wait_for(lambda: log.read_text("utf-8").count("Remove worker") >= len(self.workers))

    def end(self) -> None:
        self._kill(*self.workers, self.scheduler)

    @staticmethod
    def _kill(*processes: subprocess.Popen[bytes]) -> None:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def dask_cluster(folder: Path) -> Iterator[Cluster]:
    """Yield a cluster that has no workers yet. folder: for the cluster's files."""
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.end()
