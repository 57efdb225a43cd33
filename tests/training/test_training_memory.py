"""Test errors of trainings with too little memory or with a network too large for its files."""

import resource
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import h5py
import numpy as np
import pytest

from app.base.errors import UserError
from app.files.hdf5 import build_hdf5_bytes
from app.network.graph import find_network
from app.training import command, cpu_trainer
from app.training.cpu_trainer import open_trainer
from app.training.model import Model, make_training_model
from app.training.output_files import check_file_sizes
from app.training.team import SingleProcessTeam
from tests.support.shell import listing
from tests.support.training_for_tests import OWN, Refused, Train, new_job, some_settings
from tests.training.test_train_command import CHECKPOINT, MLP, check_failure

TOO_LITTLE = "has too little free memory to train mlp with batches of 16: free some,"
HERE = f"this machine {TOO_LITTLE} raise the limit .ulimit -v., or choose a smaller --batch-size or network"
KEPT = f"; {CHECKPOINT} stores the last complete epoch: continue with --resume {CHECKPOINT}"


def fail_at_call(call: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``real`` with a MemoryError at call number ``call``, counted from 1."""
    calls = 0

    def call_or_fail(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise MemoryError
        return real(*arguments, **options)

    return call_or_fail


def test_too_little_memory_before_the_first_epoch(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "initial_parameters", fail_at_call(1, Model.initial_parameters))
    refused(MLP, HERE)


@pytest.mark.parametrize(
    ("owner", "function", "call"),
    [(cpu_trainer.CpuTrainer, "_update_parameters", 5), (Model, "compute_gradients", 5), (command, "save_weights", 1)],
    ids=["update", "thread", "end"],
)
def test_too_little_memory_keeps_the_checkpoint(
    owner: Any, function: str, call: int, train: Train, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes at the first batch of the second epoch (number 5), or when weights are saved."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, function, fail_at_call(call, getattr(owner, function)))
        check_failure(train(*MLP, "--epochs", "2"), HERE + KEPT)
    assert set(listing(place)) == {"images", "labels", CHECKPOINT}
    assert train("--resume", CHECKPOINT, *OWN[:4])[0] == 0


def test_hdf5_reports_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError("Can't synchronously write data (unable to allocate memory block of 252706816 bytes)")
    monkeypatch.setattr(h5py, "File", Mock(side_effect=error))
    with pytest.raises(MemoryError, match="unable to allocate memory block"):
        build_hdf5_bytes({"x": np.zeros(3)}, {})


# --- on a GPU, replaced by a mock


@pytest.fixture(params=["at first", "in the midst"])
def full_card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the GPU trainer by one that runs out of memory at its start or in ``train``."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.cuda.memory import DeviceMemoryError
    from app.training.gpu import trainer

    full = Mock(side_effect=DeviceMemoryError("7 elements of float32"))
    made = full if request.param == "at first" else lambda *_: SimpleNamespace(train=full)
    monkeypatch.setattr(trainer, "GpuTrainer", made)


def test_a_full_gpu_is_a_user_error(full_card: None) -> None:
    job = new_job(some_settings(batch=16), device="cuda")
    wrong = rf"^the GPU {TOO_LITTLE} choose a smaller --batch-size, or use --device cpu$"
    with pytest.raises(UserError, match=wrong), open_trainer(job, SingleProcessTeam(), lambda: None) as trainer:
        trainer.train([np.arange(16)], 1, 0)


# --- files too large to be read back


@pytest.mark.parametrize(
    ("network", "changes", "what"),
    [
        ("mlp_99999", {}, "weights"),
        ("mlp_84100", {}, "weights"),
        ("mlp_84000", {}, None),
        ("mlp_99999", {"storage": "float16"}, None),
        ("mlp_84300", {"storage": "float16", "optimiser": "adamw"}, None),
        ("mlp_84400", {"storage": "float16", "optimiser": "adamw"}, "checkpoint"),
    ],
)
def test_too_large_files_are_refused(network: str, changes: dict[str, str], what: str | None) -> None:
    settings = some_settings(network=network, **changes)
    wrong = rf"network {network} has [0-9,]+ parameters: a {what} file of .*; choose a smaller network"
    with nullcontext() if what is None else pytest.raises(UserError, match=wrong):
        check_file_sizes(settings, make_training_model(find_network(network), settings.biases))


def test_a_too_wide_network_is_refused(refused: Refused) -> None:
    """The command checks this before it trains."""
    refused(["--network", "mlp_99999", *OWN], "network mlp_99999 has 79,499,215 parameters: a weights file")


def test_too_little_address_space_is_a_memory_error() -> None:
    """Without this check OpenBLAS would end the process, with exit code 1 or by a signal."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), before[1]))
    try:
        with pytest.raises(MemoryError), cpu_trainer.open_cpu_pool(1):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
