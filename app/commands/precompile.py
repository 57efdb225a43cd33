"""Define the options of ``main.py precompile``."""

from app.base.frozen import Frozen
from app.engine.request import gpu_option
from app.planning.request import NetworkRequest
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "tools.precompile"
EPILOG = """\
examples:
  python main.py precompile                 for this machine's card
  python main.py precompile --arch sm_90a   for another card; needs no GPU here
  python main.py precompile --all           in every precision
"""


class PrecompileRequest(Frozen, kw_only=True):
    """Options of ``precompile``: the network, the architecture and the precisions to compile for."""

    network: NetworkRequest = options("network")
    arch: str | None = option(
        "GPU architecture to compile for (default: this card's)", group="what", metavar="NAME", exclusive=True
    )
    device: str = gpu_option(exclusive=True)
    all: bool = option("compile for every precision that the architecture supports", False)
    output: Output = options("report", what="the report")
