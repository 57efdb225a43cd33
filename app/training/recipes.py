"""Define the default training settings of each network."""

from dataclasses import replace

from app.network.definitions import Network, is_listed, network_family
from app.training.settings import Recipe

# The networks of three million weights each are shipped in half the bytes; so is minidnn86, which loses nothing by it.
TANH = Recipe(epochs=30, rate=1e-3, weight_decay=0.05, biases=("fc1", "fc2"), storage="float16")
RECIPES = {
    "lenet5": Recipe(epochs=100, rate=8e-3, weight_decay=0.02, dropout=(("fc1", 0.1), ("fc2", 0.25))),
    "fa19": TANH,
    "k7": replace(TANH, epochs=20, rate=5e-4, weight_decay=0.1, shift=0),
    "minidnn86": Recipe(epochs=30, biases=("conv1", "conv2", "fc1", "fc2"), storage="float16"),
    "mlp": Recipe(
        epochs=40,
        batch=128,
        optimiser="sgd",
        rate=0.5,
        weight_decay=0.0,
        l2=1e-5,
        smoothing=0.0,
        shift=0,
        biases=("fc1", "fc2"),
    ),
}


# For other networks.
GENERAL = Recipe(epochs=40, rate=3e-3, weight_decay=0.01)


def default_recipe(network: Network) -> Recipe:
    """Return the recipe of a listed network, or of the listed network that it is a wider or narrower variant of.

    Other networks get a general recipe, with all possible biases.
    """
    own = RECIPES.get(network_family(network.name))
    if own is not None and is_listed(network):
        return own
    biases = tuple(layer.name for layer in network.layers if getattr(layer, "bias", False) is not False)
    return replace(GENERAL, biases=biases)
