"""Define the options of the main job, and options that other commands share with it."""

from pathlib import Path
from typing import Any

from app.base.frozen import Frozen
from app.base.precision import PRECISIONS
from app.cuda.cards import parse_device_name
from app.planning.request import NetworkRequest, gpu_only_error
from app.terminal.console import argparse_type, number_type, whole_number_type
from app.terminal.options import option, options
from app.terminal.output import Output

STREAMS = 4  # chunks in flight at once
LARGEST_CHUNK = 4096  # images; larger chunks gain nothing
UNDIVIDED = 256  # images; the copy of so few takes less time than the kernels of a further chunk
DEFAULT_WARMUP = 5  # untimed runs
UNLABELLED = "none"  # value of --labels


def device_option(**settings: Any) -> Any:
    """Declare the option ``--device``. settings: further arguments of ``option``, such as ``group``."""
    help = "processor to use: auto (default; a GPU if there is one), cuda, cuda:N (the GPU of this number) or cpu"
    return option(help, "auto", type=argparse_type(str, "a device", parse_device_name), metavar="DEVICE", **settings)


def gpu_option(**settings: Any) -> Any:
    """Declare the option ``--device`` of a command that needs a GPU. settings: further arguments of ``option``."""
    kind = argparse_type(str, "a device", lambda text: parse_device_name(text, ("cuda", "cuda:N")))
    return option("GPU to use, by number (default: the first)", "cuda", type=kind, metavar="cuda:N", **settings)


def devices_option(**settings: Any) -> Any:
    """Declare the option ``--devices``, a list of GPUs. settings: further arguments of ``option``."""
    return option("GPUs to use, one process each: all, or numbers as in 0,2", metavar="all|N,…", **settings)


def data_dir_option() -> Any:
    """Declare the option ``--data-dir``."""
    return option("folder with Fashion-MNIST's files", metavar="DIR")


def data_option(**settings: Any) -> Any:
    """Declare the option ``--data``. settings: further arguments of ``option``, such as ``twice``."""
    return option("file of your own images: IDX (.gz or not), or HDF5 with x and y", **settings)


class ChunkOptions(Frozen, kw_only=True):
    """Options that cut a batch into chunks on the GPU."""

    streams: int = option(
        f"number of CUDA streams; each works on one chunk at a time (default: {STREAMS})",
        STREAMS,
        type=whole_number_type(1, 64),
        metavar="N",
    )
    chunk: int | None = option(
        "number of images copied to the GPU at a time (default: a batch of up to 256, else a fifth, at most 4096)",
        type=whole_number_type(1),
        metavar="N",
    )


def default_chunk_size(batch: int) -> int:
    """Return the default number of images per chunk.

    A fifth of the batch fills the GPU and hides the copies; a small batch is one chunk.
    """
    return max(batch, 1) if batch <= UNDIVIDED else min(-(-batch // 5), LARGEST_CHUNK)


def chunk_size(requested: int | None, batch: int, *, streamed: bool = False) -> int:
    """Return the number of images per chunk: ``requested`` or the default, and at most the batch.

    streamed: more batches follow, so the first chunk need not be small, and fewer, larger chunks are faster.
    """
    equal = -(-batch // -(-batch // LARGEST_CHUNK))
    return min(requested or (equal if streamed else default_chunk_size(batch)), batch)


class LabelledImages(Frozen, kw_only=True):
    """Options that choose the images: a split of Fashion-MNIST, or the file ``data``."""

    split: str | None = option("Fashion-MNIST images to use (default: test)", choices=("test", "train"))
    data_dir: Path | None = data_dir_option()
    data: Path | None = data_option(twice="give one file; several are for: python main.py classify FILE FILE --out DIR")
    labels: str | None = option(
        "IDX file of the correct labels for --data (default: those in its file, if any); 'none': do not check the "
        "answers",
        metavar="FILE",
    )


class ImagesRequest(LabelledImages, kw_only=True):
    """Options that choose the images and how often they are repeated."""

    cycle: bool = option("repeat the images until --batch is reached", False)


class RunRequest(Frozen, kw_only=True):
    """The options of the main job, the default command: it classifies a batch, checks and times it."""

    batch: int | None = option(
        "number of images to classify (default: 10000, or all if there are fewer)",
        type=whole_number_type(1),
        metavar="N",
    )
    device: str = device_option()
    images: ImagesRequest = options("images")
    network: NetworkRequest = options("network")
    pipeline: ChunkOptions = options("pipeline (GPU)")
    repeat: int | None = option(
        "number of timed runs (default: 100 on a GPU, 1000 for up to 100 images; 1 on the CPU and with --cycle)",
        group="measuring and checking",
        type=whole_number_type(1, 100_000),
        metavar="N",
    )
    warmup: int = option(
        f"number of untimed GPU runs before the timed ones (default: {DEFAULT_WARMUP})",
        DEFAULT_WARMUP,
        type=whole_number_type(0, 100_000),
        metavar="N",
    )
    compare: str | None = option(
        "also time the batch in this precision; print the gain and the labels that differ (GPU)",
        choices=PRECISIONS,
    )
    power: bool = option("also measure power and energy per image, for five seconds more (GPU)", False)
    recheck: bool = option("compute every label again with the float64 NumPy reference, and compare", False)
    min_accuracy: float | None = option(
        "fail, with exit code 1, if the share of correct answers is below X (0 to 1)",
        type=number_type(0, 1),
        metavar="X",
    )
    output: Output = options(what="the report")

    def reject_gpu_options(self) -> None:
        """Raise UserError if an option is set that applies only to a GPU."""
        self.network.reject_gpu_options()
        if self.compare is not None:
            raise gpu_only_error(f"--compare {self.compare}")
        if self.power:
            raise gpu_only_error("--power")
