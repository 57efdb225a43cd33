"""Dask's settings. A user's own (its files, or variables like DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL) outrank them."""

import logging
import warnings

import dask

DEFAULTS = {
    "distributed": {
        "scheduler": {
            "worker-ttl": "30s",  # a worker that is silent for so long is killed, and its pieces go to others
            "active-memory-manager": {"start": False},  # results are taken at once
        },
        "worker": {"profile": {"enabled": False}},  # a hundred looks at every thread, each second
        "diagnostics": {"nvml": False},  # it would open every GPU in every process
        "deploy": {"lost-worker-timeout": "1h"},  # a busy machine may take long to start a process again
    }
}
LOGGERS = ("distributed", "distributed.client", "distributed.gc", "tornado", "tornado.application", "asyncio")


def apply_defaults() -> None:
    """Use ``DEFAULTS`` in this process, and in the processes that Dask starts from it."""
    dask.config.update_defaults(DEFAULTS)


def quieten() -> None:
    """Let Dask log nothing in this process: what matters is raised."""
    warnings.filterwarnings("ignore", module="distributed")
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
