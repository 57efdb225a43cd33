"""Define the options of ``main.py sweep``."""

from collections.abc import Sequence
from pathlib import Path

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.base.precision import PRECISIONS
from app.engine.request import gpu_option
from app.terminal.console import whole_number_type
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "lab.sweep.job"
EPILOG = """\
examples:
  python main.py sweep --conv implicit-gemm   both convolutions of lenet5
  python main.py sweep --conv register-patch --layer conv2 --network k7
  python main.py sweep --fc register-tiled --layer fc1
  python main.py sweep --conv shared-tile --set TILE=8,16,24
                                              only these tile sizes
  python main.py sweep --pipeline             streams and chunk sizes

sweep stores the best point of each layer for this card; 'auto' uses it. An
interrupted sweep keeps the points that it has measured.
"""
FAILED = "a point gave wrong results"


class SweepRequest(Frozen, kw_only=True):
    """Options of ``sweep``. Raises UserError unless they name either one kernel or the pipeline, and apply to it."""

    conv: str | None = option("kernel for convolutions to sweep", metavar="NAME")
    fc: str | None = option("kernel for fully connected layers to sweep", metavar="NAME")
    pool: str | None = option("kernel for pooling layers to sweep", metavar="NAME")
    pipeline: bool = option("sweep numbers of streams and chunk sizes instead of a kernel's sizes", False)
    network: str = option("name of the network, or its .toml file (default: lenet5)", "lenet5", metavar="NAME")
    layer: str | None = option("layer to sweep (default: all that the kernel can compute)", metavar="NAME")
    set: Sequence[str] | None = option(
        "values to try for the parameter NAME (default: all); may be repeated", action="append", metavar="NAME=V,…"
    )
    batch: int = option("number of images (default: 10000)", 10_000, type=whole_number_type(1), metavar="N")
    fused: bool = option("include the activation and pooling that follow the layer", False)
    precision: str | None = option("arithmetic (default: fp32 if the kernel supports it)", choices=PRECISIONS)
    device: str = gpu_option()
    output: Output = options(what="all points")
    plot: Path | None = option("draw heat maps into DIR", metavar="DIR")

    def __post_init__(self) -> None:
        if len(self._named_kernels) + self.pipeline != 1:
            raise UserError("name the thing to sweep: one of --conv NAME, --fc NAME, --pool NAME or --pipeline")
        if self.pipeline and (self.set or self.layer or self.fused):
            raise UserError("--pipeline sweeps the whole job: leave --set, --layer and --fused out")

    @property
    def kernel_option(self) -> tuple[str, str] | None:
        """Return (option, kernel that it names), such as ``("conv", "direct")``; None if the pipeline is swept."""
        return None if self.pipeline else self._named_kernels[0]

    @property
    def _named_kernels(self) -> list[tuple[str, str]]:
        """Return (name of the option, name of the kernel) for each given option that names a kernel."""
        kernels = {"conv": self.conv, "fc": self.fc, "pool": self.pool}
        return [(option, name) for option, name in kernels.items() if name is not None]
