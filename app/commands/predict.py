"""Define the options of ``main.py predict``."""

from pathlib import Path

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.engine.request import device_option
from app.planning.request import network_option, precision_option, sparse_option
from app.terminal.console import number_type, whole_number_type
from app.terminal.options import option, options
from app.terminal.output import Output

CSV, JSONL = "csv", "jsonl"

BODY = "images.predict.command"
EPILOG = """\
examples:
  python main.py predict photo.jpg
      the class of one picture, with its probability
  python main.py predict photos/ --out labels.csv
      all pictures in a folder and its subfolders
  python main.py predict photos/ --top 3 --show seen.png
      the three likeliest classes; seen.png shows what the network saw
  python main.py predict photos/ --min-confidence 0.6
      "unsure" instead of a class with a probability below 60 %
  python main.py predict photos/ --format jsonl
      a line of JSON for each picture
  python main.py predict images.npy --weights mine.h5 --out all.npz --logits
      an array of images, with your own weights
  find photos -newer old.csv -print0 | python main.py predict - --out new.csv
      the pictures of a list on standard input
  ls photos/*.jpg | python main.py predict -
      a line of JSON for each name as soon as it is read

PATH is a picture, a folder of pictures, a file of arrays (IDX, HDF5, NPY, NPZ),
a list of pictures (.txt, one a line or separated by zero bytes), or - for such
a list on standard input. Pictures are prepared as those of Fashion-MNIST were;
reading them needs the package Pillow.

A lone - without --out answers line by line, so that a program in any language
can keep one process: it writes the name of a picture and reads a line of JSON
with path, label, class, probability and note, or with path and error.
docs/predict.md has an example.

The ending of --out names the format: .csv, .jsonl, .npy, .npz or .parquet.
Without --out, a few images give a table, many give CSV, and --format chooses.
docs/predict.md describes the columns.

exit codes: 0 every image has its answer; 2 a usage, data or device error, an
interruption, or pictures that cannot be read: the others have their answers
nevertheless; 3 a bug.
"""


class PredictRequest(Frozen, kw_only=True):
    """Options of ``predict``: the images, the network, and where and how to write the answers."""

    paths: list[str] = option(
        "pictures, folders, arrays, lists of pictures, or -", name="paths", nargs="+", metavar="PATH"
    )
    out: str | None = option(
        "file to write: .csv, .jsonl (JSON lines), .npy, .npz or .parquet; '-': standard output, as --format says "
        "(default: a table of up to 40 images, else as '-')",
        metavar="FILE",
    )
    format: str | None = option(
        "format on standard output: csv (default), or jsonl for JSON lines", choices=(CSV, JSONL), metavar="NAME"
    )
    top: int = option(
        "number of classes to name, the likeliest first (default: 1)", 1, type=whole_number_type(1), metavar="K"
    )
    min_confidence: float = option(
        "write 'unsure' instead of the class's name below this probability, from 0 to 1 (default: 0)",
        0.0,
        type=number_type(0, 1),
        metavar="X",
    )
    logits: bool = option("also write the logits, the scores before the softmax", False)
    show: Path | None = option("also write what the network saw, and its answers: a PNG of the first 400 images")
    invert: str | None = option(
        "negate pictures: auto (default) where the object is darker than its ground; the network wants it light",
        choices=("auto", "yes", "no"),
    )
    network: str | None = network_option(group="network")
    weights: Path | None = option("HDF5 file of weights, which may name the classes (default: the shipped ones)")
    device: str = device_option()
    precision: str = precision_option()
    sparse: bool = sparse_option()
    chunk: int | None = option(
        "number of images to classify at a time; no result depends on it (default: 4096 on a GPU, 128 for "
        "each core of the CPU)",
        type=whole_number_type(1, 1 << 20),
        metavar="N",
        once="--batch",
    )
    output: Output = options("report", what="the report")

    @property
    def answers_each_line(self) -> bool:
        """Return whether the command answers each file name on standard input before it reads the next one."""
        return self.paths == ["-"] and self.out is None

    def __post_init__(self) -> None:
        csv, json = self.format == CSV, self.output.json
        for name, given in ("--format csv", csv), ("--show", self.show), ("--chunk", self.chunk), ("--json", json):
            if given and self.answers_each_line:
                raise UserError(f"{name} is not for answers line by line: add --out to read the whole list first")
        if self.format is not None and self.out not in (None, "-"):
            raise UserError(f"--format {self.format} is for standard output: the ending of --out {self.out} says it")
        if self.output.json == "-" and self.out in (None, "-"):
            raise UserError("--json - prints the report alone: name a file for the answers with --out FILE")
