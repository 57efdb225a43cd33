"""Read networks from TOML text strictly, reporting every fault with its line, and write them."""

import json
import re
import tomllib
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args

from app.base.errors import UserError, did_you_mean_hint
from app.files.checks import (
    MAX_SHOWN,
    BadValueError,
    Check,
    flag,
    format_for_error,
    number_check,
    text_check,
    tuple_check,
    whole_number_check,
)
from app.files.reading import read_file
from app.layers import Argmax, Layer
from app.network.network import (
    CHANNELS,
    KINDS,
    LEAST_SCALE,
    MAX_LAYERS,
    MAX_NUMBER,
    MAX_SIDE,
    MOST_SCALE,
    PIXEL_SCALE,
    LayerError,
    Network,
    check_layers,
    default_names,
    toml_assignments,
)

SUFFIX = ".toml"
MAX_BYTES = 1 << 16  # a hundred layers with every key take a third; the TOML parser reads the worst text in a second
MAX_LINE = 1000  # characters; the parser's time grows with the square of a key's parts
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")

_HEADER = re.compile(r"\s*\[\[\s*(?:layers|\"layers\"|'layers')\s*\]\]")
_AT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)\Z")
_FRACTION = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")


def network_toml(network: Network) -> str:
    """Return the network as TOML, from which ``parse_network`` makes an equal network."""
    about = {"name": network.name} | ({"summary": network.summary} if network.summary else {})
    return toml_assignments(about) + network.canonical_toml


def read_network(path: Path) -> Network:
    """Return the network of a file. Raises UserError for every fault, with its line."""
    content = read_file(path, MAX_BYTES)
    try:
        return parse_network(content.decode("utf-8"), path)
    except UnicodeDecodeError as error:
        line, bad = content.count(b"\n", 0, error.start) + 1, content[error.start]
        raise UserError(f"{path}, line {line}: byte {bad:#04x} is no UTF-8: store the text as UTF-8") from None


def parse_network(text: str, source: str | Path) -> Network:
    """Return the network that TOML text describes.

    source: file name for error messages; without its suffix, it names a network that has no name. Raises UserError for
    every fault: ``source, line N: what is wrong: remedy``.
    """
    return _Reader(text, source).build_network()


class _Rule(NamedTuple):
    """The requirement that a value must meet, in words and as a check."""

    needed: str
    check: Check


class _Reader:
    """Reader of one TOML text. headers: numbers, from 0, of the lines with a [[layers]] header."""

    def __init__(self, text: str, source: str | Path) -> None:
        self.source = source
        self.lines = text.split("\n")  # as tomllib counts them
        self.headers = [at for at, line in enumerate(self.lines) if _HEADER.match(line)]
        if len(text) > MAX_BYTES:
            raise self.error(len(self.lines) - 1, f"the text has more than {MAX_BYTES:,} characters: store less in it")
        for at, line in enumerate(self.lines):
            if len(line) > MAX_LINE:
                raise self.error(at, f"it has more than {MAX_LINE:,} characters: break it or store less in it")
        if len(self.headers) > MAX_LAYERS:
            found = f"{len(self.headers):,} layers, more than {MAX_LAYERS}"
            raise self.error(self.headers[MAX_LAYERS], f"{found}: remove some")
        self.document = self._parse_toml(text)

    def error(self, at: int, fault: str) -> UserError:
        """Return the error for a line. at: line number, counted from 0."""
        return UserError(f"{self.source}, line {at + 1}: {fault}")

    def _parse_toml(self, text: str) -> dict[str, Any]:
        try:
            return tomllib.loads(text)
        except RecursionError:
            raise self.error(0, "brackets are nested too deeply: no value needs more than one pair") from None
        except ValueError as error:  # TOMLDecodeError, or a number with too many digits
            found = _AT.search(str(error))
            line, column = (found[1], found[2]) if found else (None, None)
            at = int(line) - 1 if line else len(self.lines) - 1 if found else 0
            place = f" in column {column}" if column else " at the end" if found else ""
            what = format_for_error(_AT.sub("", str(error)))[1:-1]
            raise self.error(at, f"not TOML ({what}{place}): correct it") from None

    def build_network(self) -> Network:
        """Return the network, after all checks of the document. Raises UserError if one fails."""
        self._check_keys(self.document, ("name", "summary", "input", "pixel_scale", "layers"), "a network", None)
        tables = self._layer_tables()
        if "input" not in self.document:
            raise self.error(0, "input is missing: add the images' channels, height and width: input = [1, 28, 28]")
        name = self._network_name()
        summary = self._validated_value(self.document, "summary", "", _SUMMARY)
        shape = self._validated_value(self.document, "input", None, _INPUT)
        pixel_scale = self._validated_value(self.document, "pixel_scale", PIXEL_SCALE, _SCALE)
        layers = self._build_layers(tables)
        try:
            check_layers(shape, layers)
        except LayerError as error:
            # The final argmax is not in the file: its errors count as the last layer's.
            raise self.error(self.headers[min(error.at, len(tables) - 1)], str(error)) from None
        return Network(name, summary, shape, layers, pixel_scale)

    def _layer_tables(self) -> list[dict[str, Any]]:
        """Return the [[layers]] tables, one for each header."""
        tables = self.document.get("layers")
        if tables is None:
            raise self.error(len(self.lines) - 1, "layers are missing: write [[layers]] and its keys for each layer")
        written = isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
        if not written or len(tables) != len(self.headers):  # in other notation, lines are not known
            at = self._line_of_key("layers", None)
            raise self.error(at, "layers are not written as tables: write [[layers]] above the keys of each layer")
        return tables

    def _network_name(self) -> str:
        if "name" in self.document:
            return str(self._validated_value(self.document, "name", None, _NAME))
        stem = Path(self.source).stem
        if not NAME.fullmatch(stem):
            raise self.error(0, 'name is missing, and the file\'s name does not do: add one, as in name = "lenet5"')
        return stem

    def _build_layers(self, tables: list[dict[str, Any]]) -> tuple[Layer, ...]:
        kinds = [self._layer_kind(at, table) for at, table in enumerate(tables)]
        names = default_names(kind.kind for kind in kinds)
        made = [self._build_layer(at, *parts) for at, parts in enumerate(zip(tables, kinds, names, strict=True))]
        return (*made, Argmax("argmax"))

    def _layer_kind(self, at: int, table: dict[str, Any]) -> type[Layer]:
        """Return the class that the table of the layer with index ``at`` names."""
        known = ", ".join(KINDS)
        if "type" not in table:
            raise self.error(self.headers[at], f"the layer has no type: add one of {known}")
        kind = table["type"]
        if isinstance(kind, str) and kind in KINDS:
            return KINDS[kind]
        line = self._line_of_key("type", at)
        if kind == Argmax.kind:
            raise self.error(line, "every network ends with an argmax by itself: remove this layer")
        hint = did_you_mean_hint(kind, KINDS) if isinstance(kind, str) else ""
        raise self.error(line, f"unknown layer type {_format_value(kind)}: choose one of {known}{hint}")

    def _build_layer(self, at: int, table: dict[str, Any], kind: type[Layer], default_name: str) -> Layer:
        """Return a layer made from its table, whose keys are the fields of the layer's class."""
        rules = _key_rules(kind)
        self._check_keys(table, ("type", "name", *rules), f"a {kind.kind} layer", at)
        values = {"name": self._validated_value(table, "name", default_name, _LAYER_NAME, at)}
        for key, (default, rule) in rules.items():
            if default is MISSING and key not in table:
                raise self.error(self.headers[at], f"{key} is missing: a {kind.kind} layer needs it, add it")
            values[key] = self._validated_value(table, key, default, rule, at)
        return kind(**values)

    def _check_keys(self, table: dict[str, Any], known: tuple[str, ...], what: str, at: int | None) -> None:
        """Raise UserError for a key not in ``known``. what: name of the table. at: index of its layer, or None."""
        for key in table:
            if key in known:
                continue
            hint = did_you_mean_hint(key, known)
            remedy = f"it has {', '.join(known)}{hint}"
            if at is not None and key in ("summary", "input", "pixel_scale"):
                remedy = "move it above the first [[layers]]"
            raise self.error(self._line_of_key(key, at), f"{what} has no key {_format_value(key)}: {remedy}")

    def _validated_value(
        self, table: dict[str, Any], key: str, default: Any, rule: _Rule, at: int | None = None
    ) -> Any:
        """Return the value of a key, checked by ``rule``, or the default if it is missing. at: index of the layer."""
        if key not in table:
            return default
        try:
            return rule.check(table[key])
        except BadValueError:
            fault = f"{key} is {_format_value(table[key])}, but must be {rule.needed}"
            raise self.error(self._line_of_key(key, at), fault) from None

    def _line_of_key(self, key: str, at: int | None) -> int:
        """Return the line of a key in layer ``at`` (None: the network); without such a key, the table's first line."""
        ends = [*self.headers, len(self.lines)]
        first, end = (0, ends[0]) if at is None else (ends[at], ends[at + 1])
        assigned = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]")
        header = re.compile(rf"\s*\[+\s*[\"']?{re.escape(key)}\b")
        found = [line for line in range(first, end) if assigned.match(self.lines[line])]
        if at is None:
            found += [line for line in range(len(self.lines)) if header.match(self.lines[line])]
        return found[0] if found else first


def _check_input_shape(value: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = tuple_check(
        whole_number_check(1, max(CHANNELS)), whole_number_check(1, MAX_SIDE), whole_number_check(1, MAX_SIDE)
    )(value)
    if shape[0] not in CHANNELS:
        raise BadValueError("neither grey nor in colours")
    return shape


def parse_scale(value: Any) -> float:
    """Return a pixel scale, given as a number or a fraction such as "1/255". Raises BadValueError."""
    fraction = _FRACTION.fullmatch(value) if isinstance(value, str) else None
    scale: float = number_check(LEAST_SCALE, MOST_SCALE)(int(fraction[1]) / int(fraction[2]) if fraction else value)
    return scale


def _check_network_name(value: Any) -> str:
    if not (isinstance(value, str) and NAME.fullmatch(value)):
        raise BadValueError("no name")
    return value


def _check_layer_name(value: Any) -> str:
    # Biases have names that end in _bias, and the last layer of every network is named argmax.
    if _check_network_name(value).endswith("_bias") or value == Argmax.kind:
        raise BadValueError("a name that is taken")
    return str(value)


def _format_value(value: Any) -> str:
    """Return a value for an error message: short, in one line, and much as the file writes it."""
    try:
        said = json.dumps(value)
    except (TypeError, ValueError):  # a date, or a number of thousands of digits
        return format_for_error(value)
    return said if len(said) <= MAX_SHOWN else f"{said[: MAX_SHOWN - 1]}…"


_SUMMARY = _Rule("one line of text in quotes, up to 200 characters", text_check())
_INPUT = _Rule(f"1 or 3 channels, then height and width from 1 to {MAX_SIDE:,}, as in [1, 28, 28]", _check_input_shape)
_SCALE = _Rule(f'a number from {LEAST_SCALE:.2g} to {MOST_SCALE:.2g} or a fraction such as "1/255"', parse_scale)
_NAME = _Rule("a name of small letters, digits and _, such as lenet5", _check_network_name)
_LAYER_NAME = _Rule(
    "a name like conv1: small letters, digits and _, not argmax, not ending in _bias", _check_layer_name
)
# By the type of a layer's field.
_TYPES: dict[Any, _Rule] = {
    int: _Rule(f"a whole number from 1 to {MAX_NUMBER:,}", whole_number_check(1, MAX_NUMBER)),
    bool: _Rule("true or false", flag),
    float: _Rule("a number from 0 to 1", number_check(0, 1)),  # a slope
    str: _Rule("one line of text in quotes", text_check()),
}
_FROM_ZERO = _Rule(f"a whole number from 0 to {MAX_NUMBER:,}", whole_number_check(0, MAX_NUMBER))


@cache
def _key_rules(kind: type[Layer]) -> dict[str, tuple[Any, _Rule]]:
    """Return the default and the rule for each key (field) of a kind of layer."""
    rules = {}
    for one in fields(kind):
        if one.name != "name":
            (plain,) = {*get_args(one.type)} - {NoneType} or {one.type}  # int | None is an int that may be missing
            # Fields with the default 0, such as padding, may be 0.
            rules[one.name] = (one.default, _FROM_ZERO if plain is int and one.default == 0 else _TYPES[plain])
    return rules
