"""What a drawing of a step is drawn from."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """A drawing's sizes by name, and its words."""

    numbers: Mapping[str, int]
    words: Mapping[str, str]

    def __getitem__(self, name: str) -> int:
        return self.numbers[name]
