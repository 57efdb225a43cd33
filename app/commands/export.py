"""Define the options of ``main.py export``."""

from pathlib import Path

from app.base.frozen import Frozen
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "tools.export"
EPILOG = """\
examples:
  python main.py export --network lenet5 --out lenet5.onnx
      the shipped weights as an ONNX model: images in, scores and labels out
  python main.py export mine.h5 --out mine.safetensors
      arrays named and laid out as PyTorch's state dict
  python main.py export mine.h5 --out mine.npz
      arrays named and laid out as in the weights file

export writes the format that the ending of --out names, with the network in it.
import reads network and weights back, bit for bit, but no counts of correct
answers and no 8-bit filters. docs/export.md describes the formats.
"""


class ExportRequest(Frozen, kw_only=True):
    """Options of ``export``: the weights file to read, and the file to write."""

    file: Path | None = option(
        "weights file to export (default: the one shipped for --network)", name="file", nargs="?"
    )
    out: Path = option("file to write: .onnx, .safetensors or .npz", required=True)
    network: str | None = option("name of the network, or its .toml file (default: the file's own)", metavar="NAME")
    output: Output = options("report", what="the report")
