"""``main.py bench --peers``: time the application and other systems in turn, on the same weights, images and card."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from importlib import metadata
from math import inf
from typing import Any, cast

import numpy as np
from tqdm import tqdm

from app.base.errors import UserError, choices_hint
from app.base.interrupts import exit_on_interrupt
from app.base.precision import BY_NAME, OF_PEERS, PRECISIONS
from app.commands.bench import BenchRequest
from app.cuda import device
from app.lab.batch import load_batch
from app.lab.document import utc_date
from app.lab.peers.jax import JaxEngine
from app.lab.peers.rounds import Candidate, Entrant, Make, measure_in_turn
from app.lab.peers.text import as_text, speedups_over_peers
from app.lab.peers.torch import SETTINGS, Setting, TorchEngine
from app.network.graph import find_network
from app.planning import tuning
from app.records.parts import Card
from app.records.peers import Peers
from app.terminal.output import publish_report

DEFAULT_ROUNDS = 7
OURS, EAGER, JAX = "ours", "torch-eager", "jax-jit"
# Engine → mode of torch.compile; None: not compiled. Each is tried in several settings (torch.SETTINGS).
MODES = {EAGER: None, "torch-max-autotune": "max-autotune", "torch-reduce-overhead": "reduce-overhead"}
ENGINES = (OURS, *MODES, JAX)
NO_TENSORRT = (
    "TensorRT has no row: it is a toolkit of its own, with its own licence. If you have it: python main.py export "
    "--network {network} --out model.onnx && trtexec --onnx=model.onnx --shapes=images:{images} --fp16"
)
PACKAGES = ("torch", "triton", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "jax", "jaxlib", "numpy")


def compare(request: BenchRequest) -> int:
    """Time all engines, print and write. Returns 1 if this program's labels were wrong, else 0. Raises UserError."""
    wanted = parse_engine_names(request.only)
    find_network(request.network)
    device.require_gpu("bench")
    with exit_on_interrupt():  # these load CuPy
        from app.cuda.memory import pinned_array
        from app.lab.peers.ours import OurEngine

    card = device.describe_gpu()
    ours = partial(OurEngine, arch=card["architecture"], known=tuning.load(card["name"]))
    rounds = request.rounds or DEFAULT_ROUNDS
    with device.translate_gpu_errors(), output_to_stderr():
        batch = load_batch(request.network, request.batch)
        found = candidates(wanted, request.precision, ours)
        entrants = [Entrant(candidate, pinned_array((len(batch.images),), np.uint8)) for candidate in found]
        trials = sum(len(candidate.makes) for candidate in found)
        with tqdm(total=trials + len(entrants) * rounds, desc="peers", unit=" turns", disable=None) as progress:

            def advance_progress(what: str) -> None:
                progress.set_postfix_str(what)
                progress.update()

            measure_in_turn(entrants, batch, rounds, advance_progress, request.seconds or inf)
    rows = [entrant.result_row(batch) for entrant in entrants]
    options = {"network": request.network, "batch": request.batch, "rounds": rounds}
    options |= {"precision": request.precision, "only": request.only, "seconds": request.seconds}
    given = "".join(f" --{name} {value}" for name, value in options.items() if value)
    document: Peers = {
        "schema": "lenet5-inference/peers/1",
        "date": utc_date(),
        "command": f"python main.py bench --peers{given}",
        "network": batch.graph.network.name,
        "device": cast(Card, card),
        "software": versions(),
        "images": request.batch,
        "rounds": rounds,
        "rows": rows,
        "ratios": speedups_over_peers(rows),
        "notes": [NO_TENSORRT.format(network=request.network, images="x".join(map(str, batch.images.shape)))],
    }
    publish_report(document, as_text, request.output)
    return int(any(row["wrong"] for row in rows))


def parse_engine_names(only: str | None) -> list[str]:
    """Return the engines named by ``--only``, by default all. Raises UserError for an unknown one."""
    names = list(ENGINES) if only is None else only.split(",")
    for name in names:
        if name not in ENGINES:
            raise UserError(f"--only {only}: unknown engine '{name}': {choices_hint(name, ENGINES)}")
    return names


def candidates(wanted: Sequence[str], precision: str | None, ours: Any) -> list[Candidate]:
    """Return a candidate for each engine of ``wanted`` in each of its precisions. ours: makes this program's engine.

    precision: one of ours. Peers then run only in the precision that it is compared with, and ours only in those
    compared with that. None: all precisions.
    """
    asked = OF_PEERS if precision is None else (BY_NAME[precision].peers,)
    found = []
    for own in PRECISIONS if OURS in wanted else ():
        if BY_NAME[own].peers in asked:
            found.append(Candidate(OURS, own, True, {"": partial(ours, precision=own)}))
    for own in asked:
        for name, mode in MODES.items():
            if name in wanted:
                torch = partial(TorchEngine, precision=own, mode=mode)
                makes: dict[str, Make] = {str(setting): partial(torch, setting=setting) for setting in SETTINGS}
                likes = {} if mode is None else {str(setting): _cuda_graph_setting(setting) for setting in SETTINGS}
                found.append(Candidate(name, own, False, makes, EAGER if likes else "", likes))
        if JAX in wanted:
            jax = partial(JaxEngine, precision=own)
            makes = {"whole": jax, "pieces": partial(jax, in_pieces=True)}
            likes = {"whole": _cuda_graph_setting(Setting()), "pieces": _cuda_graph_setting(Setting(pieces=True))}
            found.append(Candidate(JAX, own, False, makes, EAGER, likes))
    return found


def _cuda_graph_setting(setting: Setting) -> str:
    """Return the name of this eager setting with a CUDA graph: its launches cost as little as a compiled one's."""
    return str(replace(setting, graph=True))


def versions() -> dict[str, str]:
    """Return the installed versions of the packages that affect the figures."""
    found = {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


@contextmanager
def output_to_stderr() -> Iterator[None]:
    """Send all standard output of the block to standard error, also from libraries and child processes."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
