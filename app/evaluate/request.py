"""The options of ``evaluate``. No NumPy here."""

from dataclasses import dataclass
from pathlib import Path

from app.console import whole_number
from app.errors import UserError
from app.options import option, options
from app.output import Output
from app.precision import PRECISIONS
from app.runtime.request import UNLABELLED, LabelledImages, device_option


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest:
    """The options of ``evaluate``; None if not given. Raises UserError if they leave nothing to judge."""

    network: str | None = option(
        "name of the network, or its .toml file (default: the network of --weights, else lenet5)",
        metavar="NAME",
        group="what",
    )
    weights: Path | None = option("HDF5 file of weights (default: the network's file in weights/)")
    precision: str = option("arithmetic of the GPU, as in main.py --help", "auto", choices=("auto", *PRECISIONS))
    device: str = device_option()
    against: str | None = option(
        "also compare with OTHER on the same images: a weights file, the name of a network, or a precision",
        metavar="OTHER",
    )
    batch: int | None = option("number of images to classify (default: all)", type=whole_number(1), metavar="N")
    images: LabelledImages = options("images")
    html: Path | None = option("write one self-contained page to FILE", group="output")
    output: Output = options(what="all figures")

    def __post_init__(self) -> None:
        if self.images.labels == UNLABELLED and self.against is None:
            raise UserError(
                f"--labels {UNLABELLED} leaves nothing to judge the answers by: name a file of labels, or compare two "
                "networks with --against OTHER"
            )
