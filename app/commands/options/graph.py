"""``main.py graph``: its options."""

from dataclasses import dataclass

from app.options import option, options
from app.output import Output
from app.planning.request import NetworkRequest


@dataclass(frozen=True, kw_only=True)
class GraphRequest:
    network: NetworkRequest = options("network")
    arch: str | None = option(
        "GPU architecture to plan for (default: this card's, else sm_90a)", group="output", metavar="NAME"
    )
    output: Output = options(what="the network and its launches")
