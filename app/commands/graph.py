"""Define the options of ``main.py graph``."""

from app.base.frozen import Frozen
from app.planning.request import NetworkRequest
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "tools.graph"
EPILOG = """\
examples:
  python main.py graph                    lenet5, as this machine's GPU runs it
  python main.py graph --network fa19 --arch sm_80
  python main.py graph --conv direct --no-fuse
                                          another kernel, every layer alone
  python main.py graph --json -           the same for programs
"""


class GraphRequest(Frozen, kw_only=True):
    """Options of ``graph``: the network, and the GPU architecture to plan for."""

    network: NetworkRequest = options("network")
    arch: str | None = option(
        "GPU architecture to plan for (default: this card's, else sm_90a)", group="output", metavar="NAME"
    )
    output: Output = options(what="the network and its launches")
