"""Define the options of ``main.py evaluate``."""

from pathlib import Path

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.engine.request import UNLABELLED, LabelledImages, device_option
from app.planning.request import network_option, precision_option, sparse_option, weights_option
from app.terminal.console import whole_number_type
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "images.evaluate.command"
EPILOG = """\
examples:
  python main.py evaluate                    lenet5 on Fashion-MNIST's test set
  python main.py evaluate --network k7 --html k7.html --json k7.json
                                             also as a page and as JSON
  python main.py evaluate --weights mine.h5 --data x.gz --labels y.gz
                                             your own weights and images
  python main.py evaluate --against mlp      which of two networks is better
  python main.py evaluate --against fp16     which answers fp16 changes (GPU)
  python main.py evaluate --against new.h5 --data images.gz
                                             changed answers, without labels

evaluate prints precision, recall and F1 of each class, the confusion matrix,
how reliable the probabilities are, and the most confident mistakes.
docs/evaluate.md explains the figures.
"""


class EvaluateRequest(Frozen, kw_only=True):
    """Options of ``evaluate``. Raises UserError if there are neither labels nor another network to compare with."""

    network: str | None = network_option(group="what")
    weights: Path | None = weights_option()
    precision: str = precision_option()
    sparse: bool = sparse_option()
    device: str = device_option()
    against: str | None = option(
        "also compare with OTHER on the same images: a weights file, the name of a network, or a precision",
        metavar="OTHER",
    )
    batch: int | None = option("number of images to classify (default: all)", type=whole_number_type(1), metavar="N")
    images: LabelledImages = options("images")
    html: Path | None = option("write one self-contained page to FILE", group="output")
    output: Output = options(what="all figures")

    def __post_init__(self) -> None:
        if self.images.labels == UNLABELLED and self.against is None:
            raise UserError(
                f"--labels {UNLABELLED} leaves nothing to judge the answers by: name a file of labels, or compare two "
                "networks with --against OTHER"
            )
