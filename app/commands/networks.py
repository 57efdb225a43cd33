"""Define the options of ``main.py networks``."""

from app.base.frozen import Frozen
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "tools.networks"
EPILOG = """\
examples:
  python main.py networks                 all networks
  python main.py networks mlp --toml      one as a file, to change it
  python main.py networks docs/networks/lenet5_original.toml
"""


class NetworksRequest(Frozen, kw_only=True):
    """Options of ``networks``: which networks to list, and in which format."""

    network: str | None = option(
        "only this network: a name, a file NAME.toml, or the weights file of one",
        name="network",
        nargs="?",
        metavar="NAME",
    )
    toml: bool = option("print the network as a TOML file, to make another one of it", False)
    output: Output = options(what="the list")
