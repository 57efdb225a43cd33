"""Define the settings of a training: type and bounds of each, for command line and checkpoints; imports no NumPy."""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.files import checks
from app.files.checks import BadValueError, Check
from app.network.definitions import Network, is_listed_network, network_family
from app.terminal.console import number_type, whole_number_type

MAX_COUNT = 10**12
Dropout = tuple[tuple[str, float], ...]


class Recipe(Frozen, kw_only=True):
    """The training settings that depend on the network.

    rate: peak of the one-cycle schedule. dropout: (layer, share of inputs that become 0). shift: most pixels by which
    images shift. biases: layers with a bias. storage: type of stored weights. l2: factor of the penalty in the loss.
    """

    epochs: int
    batch: int = 256
    optimiser: str = "adamw"
    rate: float = 5e-3
    weight_decay: float = 5e-3
    l2: float = 0.0
    smoothing: float = 0.05
    dropout: Dropout = ()
    shift: int = 1
    flip: bool = True
    biases: tuple[str, ...] = ()
    storage: str = "float32"


class Settings(Recipe, kw_only=True):
    """All inputs of a training. With the same machine and number of workers, they determine every bit of the result.

    network: its name. definition: its TOML. images: number of images. validation: number of images kept for validation.
    data: SHA-256 of images and labels. start: SHA-256 of the weights file that the training starts from, whose zeros
    stay zeros; "" if it starts from random weights. teacher: SHA-256 of the teacher's weights file, or "".
    """

    network: str
    definition: str
    seed: int
    images: int
    validation: int
    data: str
    start: str = ""
    teacher: str = ""

    @property
    def batches_per_epoch(self) -> int:
        """Return the number of batches per epoch; the last one may be smaller."""
        return -(-(self.images - self.validation) // self.batch)

    @property
    def steps(self) -> int:
        """Return the number of parameter updates in the whole training."""
        return self.epochs * self.batches_per_epoch

    def describe(self) -> str:
        """Return the settings in one line, for the weights file."""
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
            *([f"from the weights {self.start[:12]}, whose zeros stay"] if self.start else []),
            *([f"taught by the weights {self.teacher[:12]}"] if self.teacher else []),
            f"stored as {self.storage}",
            f"{self.images - self.validation} of {self.images} images, {self.validation} held out",
        ]
        return ", ".join(parts)


class Setting(Frozen):
    """The type and the bounds of one setting of a training.

    check: checks a value from a checkpoint. option: the same check as argparse keywords; empty for settings that are
    not a single value on the command line.
    """

    check: Check
    option: Mapping[str, Any] = field(default_factory=dict)


def _integer_setting(least: int, most: int = MAX_COUNT) -> Setting:
    return Setting(checks.whole_number_check(least, most), {"type": whole_number_type(least, most), "metavar": "N"})


def _number_setting(most: float, *, above: bool = False) -> Setting:
    return Setting(checks.number_check(0, most, above), {"type": number_type(0, most, above), "metavar": "X"})


def _choice_setting(*words: str) -> Setting:
    return Setting(checks.choice_check(*words), {"choices": words})


def _validate_share(value: Any) -> float:
    share = checks.number_check(0, 1)(value)
    if share == 1:
        raise BadValueError("1 is not below 1")
    return share


def _validate_digest(value: Any) -> str:
    if len(checks.text_check()(value)) != 64 or not set(value) <= set("0123456789abcdef"):
        raise BadValueError("it is not a SHA-256")
    return value


# Type and bounds of each field of ``Settings``.
SETTINGS = {
    "epochs": _integer_setting(1, 10_000),
    "batch": _integer_setting(1),
    "images": _integer_setting(2),
    "validation": _integer_setting(1),
    "seed": _integer_setting(0, 2**63 - 1),
    "shift": _integer_setting(0, 8),
    "rate": _number_setting(1e3, above=True),
    "weight_decay": _number_setting(1e3),
    "l2": _number_setting(1e3),
    "smoothing": _number_setting(1),
    "optimiser": _choice_setting("adamw", "sgd"),
    "storage": _choice_setting("float32", "float16"),
    "dropout": Setting(checks.list_check(checks.tuple_check(checks.text_check(), _validate_share))),
    "flip": Setting(checks.flag),
    "biases": Setting(checks.list_check(checks.text_check())),
    "network": Setting(checks.text_check()),
    "definition": Setting(checks.string),
    "data": Setting(_validate_digest),
    "start": Setting(lambda value: value and _validate_digest(value)),
    "teacher": Setting(lambda value: value and _validate_digest(value)),
}
WORKERS = _integer_setting(1)


def parse_dropout(text: str) -> Dropout:
    """Return (layer, share) pairs, sorted by layer, for the text LAYER=SHARE,… or none. Raises UserError."""
    if text == "none":
        return ()
    parts: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        if name in parts:
            raise UserError(f"--dropout {text} names layer {name} twice: give it one share")
        try:
            parts[name] = float(share)
        except ValueError:
            parts[name] = -1
        if not (name and 0 <= parts[name] < 1):
            raise UserError(f"--dropout {text}: give LAYER=SHARE,… with shares from 0 to below 1, or none")
    return tuple(sorted(parts.items()))


def format_option(name: str, value: Any) -> str:
    """Return the option of ``train`` that sets ``name`` to this value."""
    option = "batch-size" if name == "batch" else name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    if name == "dropout":
        return f"--dropout {','.join(f'{layer}={share}' for layer, share in sorted(value)) or 'none'}"
    return f"--{option} {value}"


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
    """Return the recipe of a listed network; a wider or narrower variant has the same recipe.

    Other networks get a general recipe, with a bias in every layer that may have one.
    """
    own = RECIPES.get(network_family(network.name))
    if own is not None and is_listed_network(network):
        return own
    biases = tuple(layer.name for layer in network.layers if getattr(layer, "bias", False) is not False)
    return replace(GENERAL, biases=biases)
