"""``main.py bench --peers``: the application beside PyTorch and JAX, same weights, images and card, in turn."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np
from tqdm import tqdm

from app.bench.batch import Batch, check_ready, load_batch
from app.bench.document import utc_date
from app.bench.peers.jax import JaxEngine
from app.bench.peers.pieces import PIECES, WHOLE
from app.bench.peers.rounds import Candidate, Engine, Entrant, in_turn
from app.bench.peers.text import as_text, ratios
from app.bench.peers.torch import TorchEngine, settings
from app.commands.options.bench import BenchRequest
from app.cuda import device
from app.errors import UserError
from app.interrupts import exit_on_interrupt
from app.network.graph import Graph
from app.planning import tuning
from app.precision import BY_NAME, OF_PEERS, PRECISIONS
from app.report import publish

DEFAULT_ROUNDS = 7
SCHEMA = "lenet5-inference/peers/1"
OURS, JAX = "ours", "jax-jit"
# By what torch.compile is told; None: not compiled. Each is tried in several settings (peers_torch.settings).
MODES = {"torch-eager": None, "torch-max-autotune": "max-autotune", "torch-reduce-overhead": "reduce-overhead"}
ENGINES = (OURS, *MODES, JAX)
PACKAGES = ("torch", "triton", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "jax", "jaxlib", "numpy")


def compare(request: BenchRequest) -> int:
    """Measure, print and write. Returns 1 if our labels were wrong, else 0. Raises UserError."""
    wanted = engines(request.only)
    check_ready(request.network)
    card = device.describe_gpu()
    known = tuning.load(card["name"])
    with device.gpu_errors(), output_to_stderr():
        batch = load_batch(request.network, request.batch)
        found = candidates(wanted, request.precision, partial(_our_engine, arch=card["architecture"], known=known))
        rows = measured(found, batch, request.rounds or DEFAULT_ROUNDS)
    document = as_document(rows, card, request)
    publish(document, as_text, request.output)
    return int(any(row["wrong"] for row in rows))


def engines(only: str | None) -> list[str]:
    """The engines that ``--only`` names. Raises UserError for an unknown one."""
    names = list(ENGINES) if only is None else only.split(",")
    for name in names:
        if name not in ENGINES:
            raise UserError(f"--only {only}: unknown engine '{name}': choose of {', '.join(ENGINES)}")
    return names


def candidates(wanted: Sequence[str], precision: str | None, ours: Any) -> list[Candidate]:
    """Every engine in every precision, or in the one that is asked for and that which it is compared with."""
    found = []
    for own in PRECISIONS if precision is None else (precision,):
        if OURS in wanted:
            found.append(Candidate(OURS, own, True, {"": partial(ours, precision=own)}))
    for own in OF_PEERS if precision is None else (BY_NAME[precision].peers,):
        for name, mode in MODES.items():
            if name in wanted:
                torch = partial(TorchEngine, precision=own, mode=mode)
                found.append(Candidate(name, own, False, {str(s): partial(torch, setting=s) for s in settings(mode)}))
        if JAX in wanted:
            jax = {name: partial(JaxEngine, precision=own, in_pieces=name != WHOLE) for name in (WHOLE, PIECES)}
            found.append(Candidate(JAX, own, False, jax))
    return found


def measured(found: Sequence[Candidate], batch: Batch, rounds: int) -> list[dict[str, Any]]:
    """The rows of the document."""
    with exit_on_interrupt():
        from app.cuda.memory import pinned_array

    entrants = [Entrant(candidate, pinned_array((len(batch.images),), np.uint8)) for candidate in found]
    total = len(entrants) * (rounds + 1)
    with tqdm(total=total, desc="peers", unit=" turns", disable=None) as progress:
        in_turn(entrants, batch, rounds, progress.update)
    return [entrant.row(batch) for entrant in entrants]


def as_document(rows: list[dict[str, Any]], card: dict[str, Any], request: BenchRequest) -> dict[str, Any]:
    """The figures as plain data."""
    command = f"python main.py bench --peers --network {request.network} --batch {request.batch}"
    command += f" --rounds {request.rounds or DEFAULT_ROUNDS}"
    command += f" --precision {request.precision}" if request.precision else ""
    command += f" --only {request.only}" if request.only else ""
    return {
        "schema": SCHEMA,
        "date": utc_date(),
        "command": command,
        "network": request.network,
        "device": card,
        "software": versions(),
        "images": request.batch,
        "rounds": request.rounds or DEFAULT_ROUNDS,
        "rows": rows,
        "ratios": ratios(rows),
    }


def versions() -> dict[str, str]:
    """What is installed of the packages that the figures depend on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@contextmanager
def output_to_stderr() -> Iterator[None]:
    """Whatever frameworks, their libraries and their child processes print within goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _our_engine(
    graph: Graph, images: np.ndarray, labels: np.ndarray, precision: str, arch: str, known: tuning.Tuning
) -> Engine:
    from app.bench.peers.ours import OurEngine

    return OurEngine(graph, images, labels, precision, arch, known)
