"""What a plan is made with, in the words of the command line: kernels by their names."""

from collections.abc import Mapping

from app.kernels import registry
from app.planning.choices import OPERATIONS
from app.planning.matching import Choices
from app.planning.tuning import Tuning


def named_choices(
    precision: str = "fp32", fuse: bool = True, kernels: Mapping[str, str] | None = None, tuning: Tuning | None = None
) -> Choices:
    """kernels: names by operation, or by a layer whose name is that of its option and a number, such as ``conv1``."""
    rows = {
        target: registry.find(OPERATIONS.get(target.rstrip("0123456789"), target), name)
        for target, name in (kernels or {}).items()
    }
    return Choices(precision, fuse, rows, tuning or Tuning())
