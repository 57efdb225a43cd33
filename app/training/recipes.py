"""How each network is trained unless the options say otherwise, and the settings of one training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from app.network.definitions import family


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What can be chosen. rate: the peak of the one-cycle schedule; dropout: (layer whose input it thins, share)."""

    epochs: int
    batch: int = 256
    optimiser: str = "adamw"
    rate: float = 5e-3
    weight_decay: float = 5e-3
    l2: float = 0.0
    smoothing: float = 0.05
    dropout: tuple[tuple[str, float], ...] = ()
    shift: int = 1
    flip: bool = True
    biases: tuple[str, ...] = ()  # the layers that have one
    storage: str = "float32"  # the type of the weights in their file


def _tanh_recipe(epochs: int, rate: float, weight_decay: float, shift: int) -> Recipe:
    """Of the two networks whose three million weights are shipped, so that they are stored in half the bytes."""
    return Recipe(
        epochs=epochs,
        rate=rate,
        weight_decay=weight_decay,
        shift=shift,
        biases=("fc1", "fc2"),
        storage="float16",
    )


RECIPES = {
    "lenet5": Recipe(epochs=100, rate=8e-3, weight_decay=0.02, dropout=(("fc1", 0.1), ("fc2", 0.25))),
    "fa19": _tanh_recipe(epochs=30, rate=1e-3, weight_decay=0.05, shift=1),
    "k7": _tanh_recipe(epochs=20, rate=5e-4, weight_decay=0.1, shift=0),
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
    """A network's own, or that of the one it is a width of."""
    return RECIPES.get(family(network))


@dataclass(frozen=True, kw_only=True)
class Settings(Recipe):
    """All that decides what comes out of a training, to the last bit on one machine with as many workers.

    images: how many there are, of which ``validation`` are held out; data: their SHA-256, labels included.
    """

    network: str
    seed: int
    images: int
    validation: int
    data: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def describe(self) -> str:
        """One line for the weights file."""
        parts = [
            f"epochs {self.epochs}",
            f"{self.optimiser} (weight decay {self.weight_decay:g}, L2 {self.l2:g})",
            f"one-cycle rate up to {self.rate:g}",
            f"batch {self.batch}",
            f"label smoothing {self.smoothing:g}",
            *(f"dropout {share:g} before {layer}" for layer, share in self.dropout),
            *(["horizontal flips"] if self.flip else []),
            *([f"shifts up to {self.shift} px"] if self.shift else []),
            f"seed {self.seed}",
            f"stored as {self.storage}",
            f"{self.images - self.validation} of {self.images} images, {self.validation} held out",
        ]
        return ", ".join(parts)
