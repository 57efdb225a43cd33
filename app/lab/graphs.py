"""Build networks to measure."""

from app.network.generated import weights_to_measure
from app.network.graph import Graph, build, find_network


def network_graph(text: str) -> Graph:
    """Build the network of that name or file, with weights to measure. Raises UserError for an unknown one."""
    network = find_network(text)
    return build(network, weights_to_measure(network))
