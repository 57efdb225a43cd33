"""Open a Dask cluster: processes on this machine, which end with the program, or a cluster that is already running."""

import asyncio
import fcntl
import logging
import os
import signal
import sys
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import field
from logging import CRITICAL
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, gettempdir
from time import time

import dask
from distributed import Client, Nanny, Scheduler, SchedulerPlugin, SpecCluster, WorkerPlugin
from tqdm import tqdm

from app import VERSION
from app.base.errors import UserError
from app.base.frozen import Frozen

DEFAULTS = {
    "distributed": {
        "scheduler": {
            "worker-ttl": "30s",  # a worker that is silent for so long is killed, and its pieces go to others
            "active-memory-manager": {"start": False},  # results are taken at once
        },
        "worker": {"profile": {"enabled": False}},  # it samples every thread a hundred times a second
        "diagnostics": {"nvml": False},  # it would open every GPU in every process
        "deploy": {"lost-worker-timeout": "1h"},  # a busy machine may take long to start a process again
    }
}
LOGGERS = ("distributed", "distributed.client", "distributed.gc", "tornado", "tornado.application", "asyncio")


def configure_dask() -> None:
    """Change Dask's default settings to ``DEFAULTS``, in this process and in those that Dask starts from it."""
    dask.config.update_defaults(DEFAULTS)


def silence_dask_logging() -> None:
    """Silence Dask's logging in this process: exceptions report the errors that matter."""
    warnings.filterwarnings("ignore", module="distributed")
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


HOST = "127.0.0.1"


class LocalWorker(Frozen):
    """One worker process of the local cluster.

    environment: variables that are set before the worker loads a driver. cores: numbers of the cores that it may use;
    () means all.
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: Sequence[int] = ()


@asynccontextmanager
async def start_cluster(workers: Sequence[LocalWorker], in_flight: int, plugin: WorkerPlugin) -> AsyncIterator[Client]:
    """Start a Dask cluster of local processes with the plugin; yield its client. A worker that ends is restarted.

    in_flight: number of tasks that each worker runs at the same time. Raises UserError if the processes do not start.
    """
    with scratch_folder() as folder, dask.config.set({"temporary-directory": folder}):
        local = {"dashboard": False, "dashboard_address": f"{HOST}:0", "host": HOST}
        common = local | {
            "nthreads": in_flight,
            "memory_limit": None,  # engines allocate all their memory once
            "silence_logs": CRITICAL,
        }
        spec = {
            worker.name: {"cls": Nanny, "options": common | {"env": dict(worker.environment)}} for worker in workers
        }
        deaths = WorkerDeathReporter()
        scheduler = {"cls": Scheduler, "options": local | {"plugins": [deaths]}}
        cluster = SpecCluster(spec, scheduler, asynchronous=True, silence_logs=CRITICAL)
        starting = asyncio.ensure_future(cluster)
        try:
            try:
                await asyncio.shield(starting)
            except (OSError, RuntimeError) as error:
                raise UserError(f"cannot start {len(workers)} processes ({_root_cause(error)}): use fewer") from error
            async with Client(cluster, asynchronous=True, direct_to_workers=True, set_as_default=False) as client:
                await client.register_plugin(plugin, name=plugin.name)
                yield client
        finally:
            deaths.expected = True
            with suppress(Exception):  # was raised above
                await starting  # a cluster that is still starting cannot be closed
            for nanny in cluster.workers.values():
                _kill_worker(nanny)
            await cluster.close()


class WorkerDeathReporter(SchedulerPlugin):
    """Print a note for each worker that ends or stops answering. expected: True at the shutdown, for no notes."""

    def __init__(self) -> None:
        self.expected = False
        self._names: dict[str, object] = {}

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Record the name of a new worker. Dask calls this with its address as ``worker``."""
        self._names[worker] = scheduler.workers[worker].name

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: object) -> None:
        """Print a note that a worker has ended. Dask calls this with its address as ``worker``."""
        name = self._names.pop(worker, worker)
        if not self.expected:
            tqdm.write(f"note: the process {name} ended, or was silent for too long: a new one takes over", sys.stderr)


def _root_cause(error: BaseException) -> str:
    """Return the root cause of an error in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())


def _kill_worker(nanny: Nanny) -> None:
    """Kill the worker process of a nanny (Dask's supervisor of a worker): it has nothing to save, and could hang."""
    nanny.close_gracefully()
    with suppress(ProcessLookupError):
        if nanny.pid:
            os.kill(nanny.pid, signal.SIGKILL)


PREFIX = "lenet5-cluster-"
YOUNG_SECONDS = 60.0  # the process that made a newer folder may not have locked it yet


@contextmanager
def scratch_folder() -> Iterator[str]:
    """Yield a temporary folder and remove it at the end. First remove the folders of killed processes.

    Each process locks its folder, and the system releases the lock when the process ends. On a file system without
    locks, the folders of killed processes remain.
    """
    for left in Path(gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, another user's, or just removed
            if time() - left.lstat().st_mtime > YOUNG_SECONDS:
                with _open_folder_descriptor(left) as descriptor:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    rmtree(left)
    with (
        TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder,
        _open_folder_descriptor(folder) as descriptor,
    ):
        with suppress(OSError):  # this file system has no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder


@contextmanager
def _open_folder_descriptor(folder: str | Path) -> Iterator[int]:
    """Yield an open descriptor of the folder."""
    # The flags refuse a pipe, which would block, and a link. Child processes do not inherit the descriptor.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


CONNECT_SECONDS = 10.0
REGISTER_SECONDS = 60.0  # the network's weights go to every worker
# The name under which this package is imported: app, or lenet5_inference.app where it is installed.
PACKAGE = __name__.partition(".cluster")[0]
# Builtins only: a worker without the package could not unpickle one of its functions.
ASK_VERSION = f"__import__('importlib').import_module({PACKAGE!r}).VERSION"


@asynccontextmanager
async def connect_to_cluster(address: str, plugin: WorkerPlugin) -> AsyncIterator[Client]:
    """Connect to the Dask scheduler at ``tcp://HOST:PORT``; yield a client. During the block, workers have the plugin.

    Raises UserError if the scheduler or a worker cannot be used.
    """
    client = Client(address, asynchronous=True, direct_to_workers=True, set_as_default=False, timeout=CONNECT_SECONDS)
    try:
        await _connect(client, address)
        await _check_worker_versions(client, address)
        async with _raise_on_timeout(REGISTER_SECONDS, address):
            await client.register_plugin(plugin, name=plugin.name)
        try:
            yield client
        finally:
            if client.status == "running":  # not while it tries to reconnect
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(CONNECT_SECONDS):
                        await client.unregister_worker_plugin(plugin.name)
    finally:
        with suppress(OSError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await client.close(timeout=CONNECT_SECONDS)


@asynccontextmanager
async def _raise_on_timeout(seconds: float, address: str) -> AsyncIterator[None]:
    """Raise UserError if the block waits longer than ``seconds`` for the scheduler at ``address`` or its workers."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise UserError(f"--scheduler {address}: it or a worker does not answer: restart it") from None


async def _connect(client: Client, address: str) -> None:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):  # Dask's timeout misses a stopped process
            await client
    except ValueError:
        raise UserError(f"--scheduler {address} is no address: give it as tcp://HOST:PORT") from None
    except TypeError:  # Dask's for a missing certificate
        remedy = "set Dask's distributed.comm.tls, as in docs/scale.md"
        raise UserError(f"--scheduler {address} needs a certificate: {remedy}") from None
    except OSError:
        remedy = "start dask scheduler there, or leave --scheduler out"
        raise UserError(f"--scheduler {address} does not answer in {CONNECT_SECONDS:g} s: {remedy}") from None


async def _check_worker_versions(client: Client, address: str) -> None:
    """Raise UserError unless there are workers, and the scheduler and all workers have this version of the package."""
    async with _raise_on_timeout(CONNECT_SECONDS, address):
        found = {
            f"worker {worker}": version
            for worker, version in (await client.run(eval, ASK_VERSION, on_error="return")).items()
        }
        if not found:
            raise UserError(f"--scheduler {address} has no workers: start dask worker {address} on every machine")
        try:
            found["the scheduler"] = await client.run_on_scheduler(eval, ASK_VERSION)
        except Exception as error:
            found["the scheduler"] = error
    for who, version in found.items():
        if isinstance(version, BaseException):
            raise UserError(
                f"{who} cannot load this program ({_format_error_line(version)}): start it with PYTHONPATH naming this "
                "folder"
            )
        if version != VERSION:
            raise UserError(f"{who} has lenet5-inference {version}, this is {VERSION}: install the same everywhere")


def _format_error_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
