"""Define the options of ``main.py bench``."""

from collections.abc import Iterable
from pathlib import Path

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.engine.request import gpu_option
from app.files.checks import text_check
from app.terminal.console import argparse_type, whole_number_type
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "lab.bench.job"
EPILOG = """\
examples:
  python main.py bench                       every kernel of lenet5
  python main.py bench --network k7 --batch 1000
  python main.py bench --batches 100,1000,10000 --plot plots --json bench.json
  python main.py bench --shape 12,33,33,24,5,1
                                             one convolution: C,H,W,M,K,S
  python main.py bench mine.cu               your own file among all steps
  python main.py bench mine.cu --record mine.json --author Ada
                                             for python main.py rank
  python main.py bench --peers               the application, PyTorch and JAX
  python main.py bench --peers --batch 1 --only ours,torch
  python main.py bench --peers --network lenet5,mlp --batches 1,100,10000

Each kernel is checked against the float64 reference before it is timed. Times
are medians of CUDA events with the images on the card; runs go on until the
median is steady (see --noise). bench flushes the L2 cache between runs, unless
--l2 warm is given.
"""
FAILED = "a result was wrong"

# Options that apply only to timing kernels; not to a user's own kernel; only to ``--peers``.
OF_KERNELS = ("shape", "l2", "noise", "plot", "save_tuning")
OF_FILES = ("save_tuning", "peers", "batches", "plot")
OF_PEERS = ("search", "precision", "rounds")


class BenchRequest(Frozen, kw_only=True):
    """Options of ``bench``, which times kernels, or with ``peers`` this application, PyTorch and JAX.

    shape, batches, only, precision, and network with ``peers`` are comma-separated lists. Without shape, ``bench``
    times the layers of ``network``; without batches, ``batch`` images; without only or precision, all that there are.
    Raises UserError for options that do not go together.
    """

    file: Path | None = option(
        "time your own kernel, too, on the layers of its kind (see docs/your-kernel.md)",
        name="file",
        nargs="?",
        group="what",
    )
    like: str | None = option(
        "FILE takes the arguments, launch and constants of this kernel, such as conv:direct",
        name="--as",
        metavar="NAME",
    )
    record: Path | None = option(
        "if FILE is right, write its times, source hash and card to REC as JSON", metavar="REC"
    )
    author: str = option(
        "name of FILE's author, for REC (default: none)",
        "",
        type=argparse_type(str, "a name", text_check(100)),
        metavar="NAME",
    )
    network: str = option(
        "name of the network to time, or its .toml file; with --peers: several (default: lenet5)",
        "lenet5",
        metavar="NAME,…",
    )
    shape: str | None = option(
        "time one convolution instead of a network: channels, height, width, maps, kernel, stride",
        metavar="C,H,W,M,K,S",
    )
    batch: int = option("number of images (default: 10000)", 10_000, type=whole_number_type(1), metavar="N")
    batches: str | None = option("several batch sizes; the main table shows the largest", metavar="N,N,…")
    only: str | None = option("time only these kernels; with --peers: only these engines", metavar="NAME,…")
    peers: bool = option(
        "time the application, PyTorch and JAX in turn on the same card",
        False,
        group="the whole application instead of kernels (on Fashion-MNIST test images)",
    )
    search: bool = option(
        "do not compare: try each setting of PyTorch and JAX that was not tried yet, and store its times, from which "
        "later comparisons take the fastest; can be interrupted and started again",
        False,
    )
    precision: str | None = option("time only these precisions (default: all)", metavar="NAME,…")
    rounds: int | None = option(
        "number of runs of each engine (default: 7)", type=whole_number_type(1, 1000), metavar="N"
    )
    l2: str = option(
        "flush the L2 cache between runs (cold, the default) or not (warm)",
        "cold",
        group="how",
        choices=("cold", "warm"),
    )
    device: str = gpu_option()
    noise: float = option(
        "stop when the median's relative error is below X (default: 0.01)", 0.01, type=float, metavar="X"
    )
    output: Output = options("output", what="all figures")
    plot: Path | None = option("draw ladder, roofline and batch-size plots into DIR", metavar="DIR")
    save_tuning: bool = option("store the times; 'auto' then chooses kernels by them (not with --only)", False)

    def __post_init__(self) -> None:
        if self.file is not None:
            self._refuse_options(OF_FILES, f"does not go with a file of your own ({self.file}): leave it out")
        elif self.like is not None or self.record is not None:
            given = f"--as {self.like}" if self.like is not None else f"--record {self.record}"
            raise UserError(f"{given} is for a file of your own: name FILE.cu, or leave it out")
        if self.author and self.record is None:
            raise UserError("--author is written into a record: add --record FILE, or leave it out")
        if self.peers:
            self._refuse_options(OF_KERNELS, "is for timing kernels: leave it out with --peers")
            if self.search:
                self._refuse_options(("rounds",), "is for comparing: leave it out with --search")
        else:
            self._refuse_options(OF_PEERS, "needs --peers: add that option, or leave this one out")
            if self.shape is not None and self.network != BenchRequest.network:
                raise UserError(f"--network {self.network} and --shape {self.shape}: name one or the other")

    def _refuse_options(self, names: Iterable[str], why: str) -> None:
        """Raise UserError if one of the named options was given. why: end of the error's text, after the option."""
        for name in names:
            if getattr(self, name) != getattr(BenchRequest, name):  # its default
                raise UserError(f"--{name.replace('_', '-')} {why}")
