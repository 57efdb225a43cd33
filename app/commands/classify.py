"""Define the options of ``main.py classify``."""

from pathlib import Path

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.cuda.cards import device_number
from app.engine.request import device_option, devices_option
from app.planning.request import network_option, precision_option, weights_option
from app.terminal.console import whole_number_type
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "classify.command"
EPILOG = """\
examples:
  python main.py classify images.npy --out labels
      writes labels/images.labels.npy, one byte for each image
  python main.py classify 'shards/*.gz' --out labels --logits
      all shards of a folder; also the scores
  python main.py classify @shards.txt --out labels --resume
      after an interruption: finished shards are checked and left alone
  python main.py classify big.npy --out part --start 1000000 --count 500000
      a part of the images

Images are read a block at a time: neither files nor their number are limited by
memory. A shard's results are written whole or not at all, with a receipt that
holds their checksums. Labels are the same bytes however images are cut up.

exit codes: 0 every image has its label; 2 a usage, data or device error, an
interruption, or shards that cannot be read: the others have their labels
nevertheless; 3 a bug.
"""


class ClassifyRequest(Frozen, kw_only=True):
    """Options of ``classify``. Raises UserError for options that contradict each other."""

    shards: list[str] = option(
        "files of images: IDX (.gz or not), NPY or HDF5, of any size; a pattern in quotes, as 'day-*.npy'; or @LIST, a "
        "file with one path in each line",
        name="shards",
        nargs="+",
        metavar="SHARD",
    )
    folder: Path = option(
        "folder for the results: SHARD.labels.npy for each shard, and a receipt",
        name="--out",
        required=True,
        metavar="DIR",
    )
    logits: bool = option("also write SHARD.logits.npy, the scores before the softmax", False)
    labels: str | None = option(
        "files of the correct labels (IDX or NPY): one file for one shard, or a pattern or @LIST with one for each, in "
        "the shards' order (default: y in HDF5; labels-idx1-ubyte beside images-idx3-ubyte); 'none': compare nothing",
        metavar="FILES",
    )
    start: int = option("leave out the first N images of all shards", 0, type=whole_number_type(0), metavar="N")
    count: int | None = option("number of images to classify (default: all)", type=whole_number_type(1), metavar="N")
    resume: bool = option("check the results of an earlier run, and classify only what is missing", False)
    network: str | None = network_option(group="network")
    weights: Path | None = weights_option()
    precision: str = precision_option()
    device: str = device_option(group="where")
    devices: str | None = devices_option(exclusive=True)
    workers: int | None = option(
        "number of processes to use on the CPU, each with its own cores (default: 1)",
        exclusive=True,
        type=whole_number_type(1, 1024),
        metavar="N",
    )
    scheduler: str | None = option(
        "use the workers of a running Dask cluster, on any number of machines: tcp://HOST:PORT; they read the shards "
        "by the same paths",
        exclusive=True,
        metavar="ADDRESS",
    )
    output: Output = options(what="the report")

    def __post_init__(self) -> None:
        if self.resume and self.output.overwrite:
            raise UserError("--resume keeps the results of an earlier run, --overwrite replaces them: choose one")
        if self.devices is not None and self.device != "auto":
            raise UserError(f"--devices {self.devices} names the GPUs: leave --device {self.device} out")
        if self.workers is not None and self.device not in ("auto", "cpu"):
            raise UserError(f"--workers is for the CPU: leave it out, or --device {self.device}; --devices names GPUs")
        if self.scheduler is not None and device_number(self.device) is not None:
            raise UserError(
                f"--device {self.device} is a GPU of this machine: leave it out, and start each worker of the cluster "
                "with its GPU in CUDA_VISIBLE_DEVICES"
            )
