"""Set Dask's defaults; the user's settings (files, or DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL …) override them."""

import logging
import warnings

import dask

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


def apply_defaults() -> None:
    """Use ``DEFAULTS`` in this process and in the processes that Dask starts from it."""
    dask.config.update_defaults(DEFAULTS)


def silence_dask_logging() -> None:
    """Silence Dask's logging in this process: exceptions report the errors that matter."""
    warnings.filterwarnings("ignore", module="distributed")
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
