"""What ``doctor`` finds: one line of a bug report each, with the remedy where something is missing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One fact. needed_for: what does not work without it; remedy: what to do; both empty if nothing is missing."""

    area: str
    name: str
    value: str
    needed_for: str = ""
    remedy: str = ""

    @property
    def missing(self) -> bool:
        """Whether something is missing."""
        return bool(self.remedy)
