"""What the bodies of commands take, made as the command line makes it."""

from typing import Any

from app.commands.options.common import parser_of, request_of
from app.network.graph import Graph
from app.planning.choices import load_graph
from app.planning.matching import Choices


def requested(name: str, arguments: str = "") -> Any:
    """The request of the command, or of ``run``, the main job, for these arguments."""
    return request_of(name, parser_of(name).parse_args(arguments.split()))


def resolved(arguments: str = "") -> tuple[Graph, Choices]:
    """The graph that the main job's arguments name, and the choices to plan it with."""
    graph, _, chosen = load_graph(requested("run", arguments).network)
    return graph, chosen
