"""``main.py bench``: its options."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from app.console import whole_number
from app.errors import UserError
from app.options import option, options
from app.output import Output
from app.precision import PRECISIONS
from app.runtime.request import gpu_option

EPILOG = """\
examples:
  python main.py bench                       every kernel of lenet5
  python main.py bench --network k7 --batch 1000
  python main.py bench --batches 100,1000,10000 --plot plots --json bench.json
  python main.py bench --shape 12,33,33,24,5,1
                                             one convolution: C,H,W,M,K,S
  python main.py bench --peers               the application, PyTorch, JAX, …
  python main.py bench --peers --batch 1 --only ours,torch-eager,jax-jit
  python main.py bench --peers --network k7 --precision fp16 --seconds 60
  python main.py bench --scenario offline    an MLPerf LoadGen scenario
  python main.py bench --training            epochs of training

Each kernel is checked against the float64 reference before it is timed. Times
are medians of CUDA events with the images on the card; runs go on until the
median is steady (see --noise). bench flushes the L2 cache between runs, unless
--l2 warm is given.
"""
FAILED = "a result was wrong"

# Options of the timing of kernels alone, and further options that the other jobs refuse.
OF_KERNELS = ("shape", "batches", "l2", "noise", "plot", "save_tuning")
NOT_OF = {
    "peers": (),
    "scenario": ("only", "rounds", "seconds"),
    "training": ("only", "rounds", "seconds", "precision", "network", "batch"),
}


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """The options of ``bench``. Without another job, it times kernels. Raises UserError for options of another job.

    shape, batches, only: comma-separated texts. None means all layers, ``batch`` alone, and all rows.
    """

    network: str = option(
        "name of the network to time, or its .toml file (default: lenet5)", "lenet5", group="what", metavar="NAME"
    )
    shape: str | None = option(
        "time one convolution instead of a network: channels, height, width, maps, kernel, stride",
        metavar="C,H,W,M,K,S",
    )
    batch: int = option("number of images (default: 10000)", 10_000, type=whole_number(1), metavar="N")
    batches: str | None = option("several batch sizes; the main table shows the largest", metavar="N,N,…")
    only: str | None = option("time only these kernels; with --peers: only these engines", metavar="NAME,…")
    peers: bool = option(
        "time the application, PyTorch, JAX and further systems in turn on the same card",
        False,
        group="the whole application instead of kernels (on Fashion-MNIST test images)",
        exclusive=True,
    )
    scenario: str | None = option(
        "time the application as MLPerf's LoadGen does: offline or single-stream",
        choices=("offline", "single-stream"),
        metavar="NAME",
        exclusive=True,
    )
    training: bool = option("time training of lenet5 and mlp, also with NumPy on this CPU", False, exclusive=True)
    precision: str | None = option("time only this precision (default: all)", choices=PRECISIONS)
    rounds: int | None = option("number of runs of each engine (default: 7)", type=whole_number(1, 1000), metavar="N")
    seconds: int | None = option(
        "with --peers: after N seconds try no further settings of systems that are slow to start (default: try all)",
        type=whole_number(1, 100_000),
        metavar="N",
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
    plot: Path | None = option("draw ladder, roofline and batch-size plots into DIR (needs matplotlib)", metavar="DIR")
    save_tuning: bool = option("store the times; 'auto' then chooses kernels by them (not with --only)", False)

    def __post_init__(self) -> None:
        job = next((name for name in NOT_OF if getattr(self, name)), None)
        if job is None:
            self._refuse(("precision", "rounds"), "needs --peers or --scenario: add one of them, or leave it out")
            self._refuse(("seconds",), "needs --peers: add it, or leave --seconds out")
            if self.shape is not None and self.network != BenchRequest.network:
                raise UserError(f"--network {self.network} and --shape {self.shape}: name one or the other")
        else:
            self._refuse(NOT_OF[job], f"is not for --{job}: leave it out")
            self._refuse(OF_KERNELS, f"is for timing kernels: leave it out with --{job}")

    def _refuse(self, names: Iterable[str], why: str) -> None:
        for name in names:
            if getattr(self, name) != getattr(BenchRequest, name):  # its default
                raise UserError(f"--{name.replace('_', '-')} {why}")
