"""``main.py bench``: its options."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from app.commands.options.common import batch_option, command, output_options, output_request
from app.console import whole_number
from app.errors import UserError
from app.output import Output
from app.precision import PRECISIONS

BENCH_EPILOG = """\
examples:
  python main.py bench                       every kernel of lenet5
  python main.py bench --network k7 --batch 1000
  python main.py bench --batches 100,1000,10000 --plot plots --json bench.json
  python main.py bench --shape 12,33,33,24,5,1
                                             one convolution: C,H,W,M,K,S
  python main.py bench --peers               the application, PyTorch and JAX
  python main.py bench --peers --batch 1 --only ours,torch-reduce-overhead
  python main.py bench --peers --network k7 --only ours,torch-eager
  python main.py bench --scenario offline    a scenario of LoadGen's
  python main.py bench --training            epochs, and their kernels

Each kernel is checked against the float64 reference before it is timed. Times
are medians of CUDA events with the images on the card; runs go on until the
median is steady (see --noise). The L2 cache is flushed between runs, unless
--l2 warm is given.
"""


DEFAULT_ROUNDS = 7
# Options that only the timing of kernels takes, and what else the other jobs do not take.
OF_KERNELS = ("shape", "batches", "l2", "noise", "plot", "save_tuning")
NOT_OF = {"peers": (), "scenario": ("only", "rounds"), "training": ("only", "rounds", "precision", "network", "batch")}


@dataclass(frozen=True)
class KernelsRequest:
    """Time kernels. shape: ``C,H,W,M,K,S`` of one convolution, None for all layers of the network.

    batches: sizes ``N,N,…``, None for ``batch`` alone. only: names of variants ``NAME,…``, None for all.
    """

    network: str
    shape: str | None
    batch: int
    batches: str | None
    only: str | None
    l2: str
    noise: float
    plot: Path | None
    save_tuning: bool
    output: Output


@dataclass(frozen=True)
class PeersRequest:
    """Time the application beside PyTorch and JAX. only: names of engines ``NAME,…``, None for all."""

    network: str
    batch: int
    only: str | None
    precision: str | None
    rounds: int
    output: Output


@dataclass(frozen=True)
class ScenarioRequest:
    """Time the application under a LoadGen scenario. precision: None for all."""

    scenario: str
    network: str
    batch: int
    precision: str | None
    output: Output


@dataclass(frozen=True)
class TrainingRequest:
    """Time epochs of the networks that are trained here."""

    output: Output


BenchRequest = KernelsRequest | PeersRequest | ScenarioRequest | TrainingRequest


def bench_parser() -> argparse.ArgumentParser:
    """The parser of ``bench``."""
    parser = command("bench", BENCH_EPILOG)
    what = parser.add_argument_group("what")
    what.add_argument("--network", default="lenet5", metavar="NAME", help="network to time (default: lenet5)")
    sizes = "one convolution instead of a network: channels, height, width, maps, kernel, stride"
    what.add_argument("--shape", metavar="C,H,W,M,K,S", help=sizes)
    batch_option(what)
    what.add_argument("--batches", metavar="N,N,…", help="several numbers of images; the main table is for the largest")
    what.add_argument("--only", metavar="NAME,…", help="time only these kernels; with --peers: only these engines")
    whole = parser.add_argument_group("the whole application instead of kernels (Fashion-MNIST test images)")
    kind = whole.add_mutually_exclusive_group()
    kind.add_argument("--peers", action="store_true", help="time PyTorch and JAX in turn with it, on the same card")
    kind.add_argument("--scenario", choices=("offline", "single-stream"), help="time it as MLPerf's LoadGen does")
    kind.add_argument("--training", action="store_true", help="time training of lenet5 and mlp, and NumPy on this CPU")
    whole.add_argument("--precision", choices=PRECISIONS, help="time only this arithmetic (default: all)")
    turns = f"number of turns of each engine (default: {DEFAULT_ROUNDS})"
    whole.add_argument("--rounds", type=whole_number(1, 1000), metavar="N", help=turns)
    how = parser.add_argument_group("how")
    flush = "whether to flush the L2 cache between runs (cold, the default) or not (warm)"
    how.add_argument("--l2", default="cold", choices=("cold", "warm"), help=flush)
    steady = "stop when the median is known to this share of itself (default: 0.01)"
    how.add_argument("--noise", type=float, default=0.01, metavar="X", help=steady)
    out = parser.add_argument_group("output")
    output_options(out, "all figures")
    out.add_argument(
        "--plot",
        type=Path,
        metavar="DIR",
        help="draw ladder, roofline and batch-size plots into DIR (needs matplotlib)",
    )
    out.add_argument(
        "--save-tuning",
        action="store_true",
        help="let 'auto' choose kernels by these times from now on (not with --only)",
    )
    return parser


def bench_request(options: argparse.Namespace) -> BenchRequest:
    """What ``bench`` is asked for. Raises UserError for an option that the job does not take."""
    output = output_request(options)
    job = next((name for name in NOT_OF if getattr(options, name)), None)
    if job is None:
        _refuse(options, ("precision", "rounds"), "goes with --peers or --scenario: add one of them, or leave it out")
        if options.shape is not None and "network" in _given(options, ("network",)):
            raise UserError(f"--network {options.network} and --shape {options.shape}: name one or the other")
        own = ("network", "shape", "batch", "batches", "only", "l2", "noise", "plot", "save_tuning")
        return KernelsRequest(**{name: getattr(options, name) for name in own}, output=output)
    _refuse(options, NOT_OF[job], f"is not for --{job}: leave it out")
    _refuse(options, OF_KERNELS, f"is for timing kernels: leave it out with --{job}")
    if job == "peers":
        rounds = options.rounds or DEFAULT_ROUNDS
        return PeersRequest(options.network, options.batch, options.only, options.precision, rounds, output)
    if job == "scenario":
        return ScenarioRequest(options.scenario, options.network, options.batch, options.precision, output)
    return TrainingRequest(output)


def _given(options: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Those of the options that have another value than their default."""
    parser = bench_parser()
    return [name for name in names if getattr(options, name) != parser.get_default(name)]


def _refuse(options: argparse.Namespace, names: Iterable[str], why: str) -> None:
    for name in _given(options, names):
        raise UserError(f"--{name.replace('_', '-')} {why}")
