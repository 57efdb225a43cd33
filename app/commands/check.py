"""Define the options of ``main.py check``."""

from pathlib import Path

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.engine.request import device_option
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "ladder.check.job"
EPILOG = """\
examples:
  python main.py check --conv direct --device cpu
                                        small odd shapes, without a GPU
  python main.py check --conv shared-tile --layer conv2 --network fa19
  python main.py check --conv unrolled --shape 3,13,10,17,3,1
                                        C,H,W,M,K,S: channels, height, width,
                                        maps, side of the filters, stride
  python main.py check --fc naive       shapes of products: INPUTS,OUTPUTS
  python main.py check --pool shared    of pooling: C,H,W,WINDOW,STRIDE
  python main.py check --init mine.cu --as direct
                                        a file of your own to start from
  python main.py check mine.cu          is it right?
  python main.py check mine.cu --counts
                                        and its place among the steps by its
                                        loads, without a GPU

On the processor, g++ compiles the kernel's file and runs it thread by thread,
kernels with Hopper's warpgroup instructions (--fc warpgroup) too.
An access outside an array is reported with its line, thread and block, and so
is a loop without an end, which ends the check. A file of your own is run as it
is, without a sandbox: check only code that you would run. docs/your-kernel.md
describes its header, and how kernels that cheat are found.
"""
FAILED = "something is wrong"


class CheckRequest(Frozen, kw_only=True):
    """Options of ``check``. Raises UserError unless they name exactly one kernel and at most one shape."""

    file: Path | None = option(
        "file of your own kernel, whose lines '//@ …' say what it is", name="file", nargs="?", group="what"
    )
    conv: str | None = option("kernel for convolutions to check", metavar="NAME", exclusive=True)
    fc: str | None = option("kernel for fully connected layers to check", metavar="NAME", exclusive=True)
    pool: str | None = option("kernel for pooling layers to check", metavar="NAME", exclusive=True)
    init: Path | None = option(
        "write a file to start from, a copy of the kernel --as (default: direct)", metavar="NEW.cu"
    )
    like: str | None = option(
        "FILE takes the arguments, launch and constants of this kernel, such as conv:direct",
        name="--as",
        metavar="NAME",
    )
    shape: str | None = option("check this shape alone (default: small odd ones)", metavar="N,N,…")
    counts: bool = option(
        "if it is right, also count its loads by g++ and place it among the steps, without a GPU", False
    )
    layer: str | None = option("check the shape of this layer of --network alone", metavar="NAME")
    network: str = option("name of the network, or its .toml file (default: lenet5)", "lenet5", metavar="NAME")
    device: str = device_option(group="where")
    output: Output = options("report", what="the verdicts")

    def __post_init__(self) -> None:
        named = [one for one in (self.file, self.init, self.conv, self.fc, self.pool) if one is not None]
        if not named:
            raise UserError("name the kernel to check: FILE.cu, or one of --conv NAME, --fc NAME or --pool NAME")
        if len(named) > 1:
            raise UserError(f"{named[0]} and {named[1]}: name one kernel")
        if self.like is not None and self.file is None and self.init is None:
            raise UserError(f"--as {self.like} is for a file of your own: name FILE.cu, or leave it out")
        if self.shape is not None and self.layer is not None:
            raise UserError(f"--shape {self.shape} and --layer {self.layer}: name one or the other")
        if self.layer is None and self.network != CheckRequest.network:
            raise UserError(f"--network {self.network} needs --layer: name the layer to check")

    @property
    def kernel_option(self) -> tuple[str, str]:
        """Return the option that names a kernel, and the kernel's name, such as ``("conv", "direct")``."""
        kernels = (("conv", self.conv), ("fc", self.fc), ("pool", self.pool))
        return next((option, name) for option, name in kernels if name is not None)
