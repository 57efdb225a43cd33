"""``main.py networks``: its options."""

from dataclasses import dataclass

from app.options import options
from app.output import Output


@dataclass(frozen=True, kw_only=True)
class NetworksRequest:
    output: Output = options(what="the list")
