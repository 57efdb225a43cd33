"""A cluster of processes on this machine; they end with the program, and nothing listens beyond 127.0.0.1."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from logging import CRITICAL
from tempfile import TemporaryDirectory

import dask
from distributed import Client, Nanny, Scheduler, SpecCluster, WorkerPlugin

HOST = "127.0.0.1"


@dataclass(frozen=True)
class LocalWorker:
    """A process of the local cluster. environment: set before the process loads a driver.

    cores: what it may use; () for all.
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: Sequence[int] = ()


@asynccontextmanager
async def local_cluster(workers: Sequence[LocalWorker], in_flight: int, plugin: WorkerPlugin) -> AsyncIterator[Client]:
    """Yield the client of a new cluster whose workers have the plugin. A worker that ends is started again.

    in_flight: tasks at a time in each worker.
    """
    with (
        TemporaryDirectory(prefix="lenet5-cluster-", ignore_cleanup_errors=True) as folder,
        dask.config.set({"temporary-directory": folder}),
    ):
        own = {"dashboard": False, "dashboard_address": f"{HOST}:0", "host": HOST}
        scheduler = {"cls": Scheduler, "options": own}
        common = own | {
            "nthreads": in_flight,
            "memory_limit": None,  # an engine allocates once, as much as it needs
            "silence_logs": CRITICAL,
        }
        spec = {
            worker.name: {"cls": Nanny, "options": common | {"env": dict(worker.environment)}} for worker in workers
        }
        cluster = SpecCluster(spec, scheduler, asynchronous=True, silence_logs=CRITICAL)
        starting = asyncio.ensure_future(cluster)
        try:
            await asyncio.shield(starting)
            async with Client(cluster, asynchronous=True, direct_to_workers=True, set_as_default=False) as client:
                await client.register_plugin(plugin, name=plugin.name)
                yield client
        finally:
            with suppress(Exception):  # was raised above
                await starting  # what is half started could not be ended
            for nanny in cluster.workers.values():
                _kill(nanny)
            await cluster.close()


def _kill(nanny: Nanny) -> None:
    """End the nanny's process now: it holds nothing, and one that hangs would have to be waited for."""
    nanny.close_gracefully()
    with suppress(ProcessLookupError):
        if nanny.pid:
            os.kill(nanny.pid, signal.SIGKILL)
