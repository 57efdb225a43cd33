"""Define the options that choose a network and how to run it. ``resolve_choices`` resolves their names."""

from pathlib import Path
from typing import Any

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.base.precision import PRECISIONS
from app.terminal.options import option


def network_option(**settings: Any) -> Any:
    """Declare the option ``--network``. settings: arguments for ``option``, such as a default."""
    help = "name of the network, or its .toml file (default: the network of --weights, else lenet5)"
    return option(help, metavar="NAME", **settings)


def weights_option() -> Any:
    """Declare the option ``--weights``."""
    return option("HDF5 file of weights (default: the network's file in weights/)")


def sparse_option() -> Any:
    """Declare the option ``--no-sparse``."""
    return option("multiply 2:4 sparse weights as dense ones", True, name="--no-sparse")


def precision_option() -> Any:
    """Declare the option ``--precision`` for commands whose help refers to that of the main job."""
    return option("arithmetic of the GPU, as in main.py --help", "auto", choices=("auto", *PRECISIONS))


class NetworkRequest(Frozen, kw_only=True):
    """Options for the network, its weights, kernels and precision."""

    network: str | None = network_option()
    weights: Path | None = weights_option()
    conv: str = option(
        "kernel for convolutions, or one per layer: conv1=NAME,conv2=NAME (default: auto, the fastest known; "
        "'main.py kernels' lists them)",
        "auto",
        metavar="NAME",
    )
    fc: str = option("kernel for fully connected layers (default: auto)", "auto", metavar="NAME")
    pool: str = option("kernel for pooling layers (default: auto)", "auto", metavar="NAME")
    latency: bool = option(
        "split the sums of fully connected layers over more blocks; faster for few images, but rounds differently",
        False,
    )
    precision: str = option(
        "arithmetic of the GPU: how numbers are multiplied and stored; sums are float32. fp32x is as exact as "
        "fp32, but runs on tensor cores; int8 is the coarsest. auto: fp32x where the card has tensor cores, else fp32",
        "auto",
        choices=("auto", *PRECISIONS),
    )
    fuse: bool = option("run each layer as a separate kernel", True, name="--no-fuse")
    sparse: bool = sparse_option()

    @property
    def kernels(self) -> dict[str, str]:
        """Return the value of each kernel option: a kernel's name, ``auto``, or ``LAYER=NAME,LAYER=NAME``."""
        return {"conv": self.conv, "fc": self.fc, "pool": self.pool}

    def reject_gpu_options(self) -> None:
        """Raise UserError if a kernel, ``--latency`` or a precision other than fp32 is chosen, which need a GPU."""
        for kind, name in self.kernels.items():
            if name != "auto":
                raise UserError(f"--{kind} {name} chooses a GPU kernel: leave it out on the CPU")
        if self.latency:
            raise gpu_only_error("--latency")
        if self.precision not in ("auto", "fp32"):
            raise gpu_only_error(f"--precision {self.precision}")


def gpu_only_error(option: str) -> UserError:
    """Return the error for an option that has no meaning on the CPU."""
    return UserError(f"{option} is for the GPU: leave it out on the CPU")
