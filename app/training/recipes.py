"""The settings for the training of each network, unless the options set others."""

from dataclasses import replace

from app.network.definitions import family
from app.training.settings import Recipe

# The two networks with three million weights each are shipped in half the bytes.
TANH = Recipe(epochs=30, rate=1e-3, weight_decay=0.05, biases=("fc1", "fc2"), storage="float16")
RECIPES = {
    "lenet5": Recipe(epochs=100, rate=8e-3, weight_decay=0.02, dropout=(("fc1", 0.1), ("fc2", 0.25))),
    "fa19": TANH,
    "k7": replace(TANH, epochs=20, rate=5e-4, weight_decay=0.1, shift=0),
    "minidnn86": Recipe(epochs=30, biases=("conv1", "conv2", "fc1", "fc2")),
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


def recipe_of(network: str) -> Recipe | None:
    """Return the recipe of a network, or of the network that it is a wider or narrower form of; None without one."""
    return RECIPES.get(family(network))
