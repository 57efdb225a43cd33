"""Make requests for commands in the same way as the command line."""

from collections.abc import Mapping
from typing import Any

from app.commands.parsers import load_parser, make_request
from app.kernels import registry
from app.network.graph import Graph
from app.planning.choices import OPERATIONS, load_graph
from app.planning.matching import Choices
from app.planning.tuning import Tuning


def requested(name: str, arguments: str = "") -> Any:
    """Return the request of a command for these arguments; ``run`` is the main job."""
    return make_request(name, load_parser(name).parse_args(arguments.split()))


def resolved(arguments: str = "") -> tuple[Graph, Choices]:
    """Return the graph that the main job's arguments name, and the choices for its plan."""
    graph, _, chosen = load_graph(requested("run", arguments).network)
    return graph, chosen


def named_choices(
    precision: str = "fp32", fuse: bool = True, kernels: Mapping[str, str] | None = None, tuning: Tuning | None = None
) -> Choices:
    """Return a plan's choices. kernels: operation such as ``conv``, or layer such as ``conv1``, → kernel's name."""
    rows = {
        target: registry.find_variant(OPERATIONS.get(target.rstrip("0123456789"), target), name)
        for target, name in (kernels or {}).items()
    }
    return Choices(precision, fuse, rows, tuning or Tuning())
