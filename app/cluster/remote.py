"""Connect to a Dask cluster that is already running, on this machine or on many."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from distributed import Client, WorkerPlugin

from app import VERSION
from app.base.errors import UserError

CONNECT_SECONDS = 10.0
REGISTER_SECONDS = 60.0  # the network's weights go to every worker
# The name under which this package is imported: app, or lenet5_inference.app where it is installed.
PACKAGE = __name__.partition(".cluster")[0]
# Builtins only: a worker without the package could not unpickle one of its functions.
ASK_VERSION = f"__import__('importlib').import_module({PACKAGE!r}).VERSION"


@asynccontextmanager
async def running_cluster(address: str, plugin: WorkerPlugin) -> AsyncIterator[Client]:
    """Connect to the scheduler at ``tcp://HOST:PORT``; yield a client. In the block, its workers have the plugin.

    Raises UserError if the scheduler or a worker cannot be used.
    """
    client = Client(address, asynchronous=True, direct_to_workers=True, set_as_default=False, timeout=CONNECT_SECONDS)
    try:
        await _connect(client, address)
        await _check_worker_versions(client, address)
        try:
            async with asyncio.timeout(REGISTER_SECONDS):
                await client.register_plugin(plugin, name=plugin.name)
        except TimeoutError:
            raise UserError(f"--scheduler {address}: it or a worker does not answer: restart it") from None
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
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
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
    except TimeoutError:
        raise UserError(f"--scheduler {address}: it or a worker does not answer: restart it") from None
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
