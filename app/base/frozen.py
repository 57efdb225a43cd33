"""Define a base of frozen dataclasses that is cheap to inherit from, because each start of a command defines dozens.

``dataclass`` compiles six methods for each class, which takes half a millisecond. Subclasses of ``Frozen`` share its
methods: defining a class takes a twentieth of that time, and making an instance takes a microsecond more.
"""

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import Any, ClassVar, NoReturn, dataclass_transform


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Frozen:
    """Base of classes that behave like ``@dataclass(frozen=True)``; ``fields`` and ``replace`` accept their instances.

    kw_only: as for ``dataclass``, as in ``class Request(Frozen, kw_only=True)``.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    _fields: ClassVar[tuple[Field[Any], ...]]  # stored, because ``fields`` would compute them for each instance

    def __init_subclass__(cls, *, kw_only: bool = False, **others: Any) -> None:
        super().__init_subclass__(**others)
        dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        cls._fields = fields(cls)

    def __init__(self, *values: Any, **named: Any) -> None:
        positional: tuple[str, ...] = type(self).__match_args__  # type: ignore[attr-defined]
        given = dict(zip(positional, values, strict=False))
        if len(values) > len(positional) or given.keys() & named.keys():
            raise TypeError(f"{type(self).__name__} takes {', '.join(positional)}, each once")
        given |= named
        state = self.__dict__
        for one in self._fields:
            if one.name in given:
                state[one.name] = given.pop(one.name)
            elif one.default_factory is not MISSING:
                state[one.name] = one.default_factory()
            elif one.default is not MISSING:
                state[one.name] = one.default
            else:
                raise TypeError(f"{type(self).__name__} lacks a value for {one.name}")
        if given:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(given)}")
        self.__post_init__()

    def __post_init__(self) -> None:
        """Do nothing. Subclasses check or complete the fields' values here."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return self._compared_values() == other._compared_values() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._compared_values())

    def __repr__(self) -> str:
        shown = (f"{one.name}={getattr(self, one.name)!r}" for one in self._fields if one.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _compared_values(self) -> tuple[Any, ...]:
        """Return the values of the fields that take part in comparisons."""
        return tuple(getattr(self, one.name) for one in self._fields if one.compare)
