"""Define the options of ``main.py import``."""

from pathlib import Path

from app.base.frozen import Frozen
from app.terminal.console import whole_number_type
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "tools.import_"
EPILOG = """\
examples:
  python main.py import model.onnx --out model.h5 --classes cat,dog,owl
      what torch.onnx.export(model, images, "model.onnx") wrote; the file of its
      data, model.onnx.data, stays beside it
  python main.py import model.pt --network model.toml --out model.h5
      what torch.save(model.state_dict(), "model.pt") wrote; without --network,
      a network that alone fits the arrays is printed, to be confirmed
  python main.py import weights-86.bin --network minidnn86 --out old86.h5
      a flat dump of mini-dnn: the network names the layers
  python main.py import eng-0001.params --symbol eng-symbol.json --out eng.h5
      arrays of MXNet, with the network that was saved beside them
  python main.py import clothes.keras --out clothes.h5
      a model that Keras 2 or 3 saved, as .keras or .h5, which contains its
      network
  python main.py --weights old86.h5
      classify with the imported weights

import reads a file of another system and writes a weights file of this program.
It prints every array and what it did to it, and compares the scores of up to
64 random images with those of the file's own layout.
"""


class ImportRequest(Frozen, kw_only=True):
    """Options of ``import``: the file to read, the weights file to write, and how to interpret the arrays."""

    file: Path = option("file to read; its content, else its ending, gives the format", name="file")
    out: Path = option("weights file to write", required=True)
    network: str | None = option(
        "name of the network whose layers the file holds, or a file NAME.toml that describes it",
        metavar="NAME",
        group="network",
        exclusive=True,
    )
    symbol: Path | None = option("MXNet's symbol file, which describes the network of a .params file", exclusive=True)
    size: int | None = option(
        "height and width of the images that the layers read, where the file does not give it",
        type=whole_number_type(1, 1024),
        metavar="N",
    )
    rule: str | None = option(
        "how images are enlarged (default: course for the old systems' formats, else as the network has it)",
        choices=("edge", "course"),
    )
    pixel_scale: str | None = option(
        "factor of pixels from 0 to 255, a number or a fraction (default: 1 for the old systems' formats, else as the "
        "network has it)",
        metavar="X",
    )
    classes: str | None = option(
        "names of the classes, separated by commas, or a text file with one on each line (default: those that the file "
        "has)",
        metavar="A,B,...|FILE",
    )
    output: Output = options("report", what="the report")
