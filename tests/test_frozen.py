"""Frozen classes: they behave as the standard library's frozen dataclasses do."""

import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar

import pytest

from app.base.frozen import Frozen


class Ours(Frozen):
    """Fields of every kind."""

    name: str
    kind: ClassVar[str] = "a kind"
    numbers: tuple[int, ...] = (1, 2)
    remark: str = field(default="", compare=False)
    hidden: dict[str, int] = field(default_factory=dict, repr=False, compare=False)


class Older(Ours, kw_only=True):
    """Adds a field that is only given by name."""

    age: int = 0


@dataclass(frozen=True)
class Theirs:
    """As ``Ours``."""

    name: str
    kind: ClassVar[str] = "a kind"
    numbers: tuple[int, ...] = (1, 2)
    remark: str = field(default="", compare=False)
    hidden: dict[str, int] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class TheirOlder(Theirs):
    """As ``Older``."""

    age: int = 0


PAIRS = pytest.mark.parametrize(("ours", "theirs"), [(Ours, Theirs), (Older, TheirOlder)])
GIVEN: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    (("a",), {}),
    ((), {"name": "a"}),
    (("a", (3,), "so"), {}),
    (("a",), {"remark": "so", "numbers": (3,)}),
)


@PAIRS
@pytest.mark.parametrize(("values", "named"), GIVEN)
def test_an_instance_is_as_a_dataclass_makes_it(
    ours: Any, theirs: Any, values: tuple[Any, ...], named: dict[str, Any]
) -> None:
    one, other = ours(*values, **named), theirs(*values, **named)
    assert list(vars(one).items()) == list(vars(other).items())
    assert repr(one) == repr(other).replace("TheirOlder", "Older").replace("Theirs", "Ours")
    assert hash(one) == hash(other)
    assert replace(one, name="b") == ours(**{**vars(one), "name": "b"}) != one
    assert replace(one, remark="other") == one and one != other
    assert pickle.loads(pickle.dumps(one)) == one
    assert is_dataclass(one) and [field.name for field in fields(one)] == [field.name for field in fields(other)]


@PAIRS
@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), (("a",), {"name": "a"}), (("a", (), "", {}, 5), {}), (("a",), {"none": 1}), (("a",), {"kind": "b"})],
)
def test_wrong_values_are_refused(ours: Any, theirs: Any, values: tuple[Any, ...], named: dict[str, Any]) -> None:
    for kind in (ours, theirs):
        with pytest.raises(TypeError):
            kind(*values, **named)


def test_nothing_changes_afterwards() -> None:
    one = Ours("a")
    assert Ours("a").hidden is not one.hidden
    for change in (lambda: setattr(one, "name", "b"), lambda: setattr(one, "new", 1), lambda: delattr(one, "name")):
        with pytest.raises(FrozenInstanceError):
            change()
