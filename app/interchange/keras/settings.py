"""The settings of one Keras layer, taken one by one; those that would change its results unseen are refused."""

import re
from typing import Any

import numpy as np

from app.files.checks import BadValueError, format_for_error, number_check
from app.interchange.keras.chain import KerasLayer
from app.network.network import MAX_NUMBER

# What only building and training a layer needs.
UNUSED = re.compile(
    r"name|trainable|(input_)?dtype|batch(_input)?_shape|\w+_(initializer|regularizer|constraint)|momentum|renorm\w*"
    r"|synchronized|virtual_batch_size|fused"
)
OTHERS = "export another network"


class Settings:
    """Each method removes what it returns; ``check_all_taken`` refuses what is left."""

    def __init__(self, layer: KerasLayer) -> None:
        self.layer = layer
        self._left = {key: value for key, value in layer.settings.items() if not UNUSED.fullmatch(key)}

    def take(self, key: str, default: Any = None) -> Any:
        """Return a setting of any content, or the default where it is missing or null."""
        found = self._left.pop(key, None)
        return default if found is None else found

    def require(self, key: str, *allowed: Any) -> Any:
        """Return a setting that must have one of these values; the first is the default. Raises BadValueError."""
        found = self.take(key, allowed[0])
        if found not in allowed:
            known = " or ".join(map(str, allowed))
            raise self.layer.fault(f"has {key} {format_for_error(found)}", f"only {known} can be imported")
        return found

    def count(self, key: str) -> int:
        """Return a positive whole number. Raises BadValueError."""
        return self._checked_count(key, self.take(key))

    def square(self, key: str, default: int | None = None) -> int:
        """Return the number that a setting gives for height and width. Raises BadValueError for two."""
        found = self.take(key, default)
        if isinstance(found, list):
            if len(found) != 2 or found[0] != found[1]:
                raise self.layer.fault(f"has a {key} that differs in height and width", OTHERS)
            found = found[0]
        return self._checked_count(key, found)

    def _checked_count(self, key: str, found: Any) -> int:
        if type(found) is not int or not 1 <= found <= MAX_NUMBER:
            raise self.layer.fault(f"has {key} {format_for_error(found)}", f"it must be from 1 to {MAX_NUMBER:,}")
        return found

    def numbers(self, key: str, default: float, channels: int) -> np.ndarray:
        """Return a finite number, or one for each channel, as float64. Raises BadValueError."""
        found = self.take(key, default)
        try:
            many = [number_check()(one) for one in (found if isinstance(found, list) else [found])]
        except BadValueError as error:
            raise self.layer.fault(f"has a wrong {key}: {error}", OTHERS) from None
        if isinstance(found, list) and len(many) not in (1, channels):
            raise self.layer.fault(f"has {len(many):,} numbers as {key} for {channels:,} channels", OTHERS)
        return np.array(many if len(many) > 1 else many[0], np.float64)

    def slope(self, default: float) -> float:
        """Return the slope below 0: ``negative_slope``, Keras 2's ``alpha``, or the default. Raises BadValueError."""
        found = [float(self.numbers(key, default, 1)) for key in ("negative_slope", "alpha")]
        return next((one for one in found if one != default), default)

    def padding(self, shape: tuple[int, ...], window: int, stride: int) -> tuple[int, int]:
        """Return how many rows padding adds before and behind maps (H, W, C), and as many columns."""
        if self.require("padding", "valid", "same") == "valid":
            return 0, 0
        totals = {max((-(-side // stride) - 1) * stride + window - side, 0) for side in shape[:2]}
        if len(totals) > 1:
            raise self.layer.fault("pads rows and columns differently", "use padding valid")
        (total,) = totals
        return total // 2, total - total // 2

    def check_all_taken(self) -> None:
        """Raise BadValueError if a setting was not taken that is neither null nor false."""
        left = [key for key, value in self._left.items() if value is not None and value is not False]
        if left:
            raise self.layer.fault(f"has the setting {format_for_error(min(left))}", "this program does not know it")
