"""Write tables of the JSON documents and their fields, and their JSON Schemas, from the types in app/records/."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, Union, get_args, is_typeddict

from app.files.writing import json_text
from app.records.derive import OneOf, document_schema, document_types, record_fields, split_annotated_type
from docs.generate.figures import Figures

SECTIONS = {  # document → section of docs/ about it
    "accuracy": "bench_json.md#accuracy",
    "bench": "bench_json.md",
    "cache": "operate.md#look-at-the-machine",
    "calls": "api.md#measured",
    "classify": "scale.md",
    "classify-costs": "scale.md#measured",
    "compare": "operate.md#compare-reports",
    "doctor": "operate.md#look-at-the-machine",
    "evaluate": "evaluate.md",
    "export": "export.md",
    "import": "import.md",
    "kernel-record": "your-kernel.md#records-and-rankings",
    "languages": "languages.md",
    "peer-settings": "bench_json.md#bench---peers",
    "peers": "bench_json.md#bench---peers",
    "predict": "predict.md",
    "ranking": "your-kernel.md#records-and-rankings",
    "report": "report.md",
    "scale": "scale.md#measured",
}


def document_table(figures: Figures) -> str:
    """Return a table of the documents: name, description, and the page that describes each further."""
    rows = []
    for name, kind in document_types().items():
        record, *others = get_args(kind) or [kind]
        path = record.__module__.replace(".", "/")
        what = " ".join(str(one.__doc__) for one in (record, *others))
        page = SECTIONS.get(name, "")
        more = page and f"[{page.partition('#')[0]}]({page})"
        rows.append(f"| [{name}](../{path}.py) | {what} | {more} |")
    return "\n".join(["| document | what it is | more |", "| --- | --- | --- |", *rows])


def field_table(name: str, figures: Figures) -> str:
    """Return a table of the fields of document ``name``; the row of a record without nested ones lists its fields."""
    rows = [f"| `{place}` | {text} |" for place, text in _field_rows([document_types()[name]], {})]
    return "\n".join(["| field | meaning |", "| --- | --- |", *rows])


def field_tables(*names: str) -> dict[str, Any]:
    """Return block name → function that returns the field table, for the documents ``names``."""
    return {name.replace("-", "_"): partial(field_table, name) for name in names}


def write_schemas(folder: Path) -> list[Path]:
    """Write the JSON Schema of every document into a new folder; return the paths of the files."""
    folder.mkdir()
    files = [folder / f"{name}.json" for name in document_types()]
    for file in files:
        file.write_text(json_text(document_schema(file.stem)), encoding="utf-8")
    return files


def _field_rows(records: list[Any], seen: dict[Any, str], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, description) of each field. prefix: start of each path. seen: record → path that describes it."""
    for name, hint in {name: hint for record in records for name, hint in record_fields(record).items()}.items():
        inner = _record_types_in(hint)
        place = f"{prefix}{name}" + "[]" * any(split_annotated_type(one).origin is list for one in _union_members(hint))
        deep = any(_record_types_in(field) for one in inner for field in record_fields(one).values())
        text = _describe_field(hint)
        if inner and inner[0] in seen:
            yield place, "; ".join(filter(None, (text, f"as in `{seen[inner[0]]}`")))
            continue
        seen.update(dict.fromkeys(inner, place))
        if inner and not deep:
            text = ": ".join(filter(None, (text, _fields_as_phrase(inner))))
        if text or not deep:
            yield place, text
        if deep:
            yield from _field_rows(inner, seen, f"{place}.")


def _fields_as_phrase(records: list[Any]) -> str:
    """Return a phrase that lists the fields of the record types ``records``, with their descriptions."""
    told = []
    for record in records:
        names = [
            f"`{name}`" + (f" ({_describe_field(hint)})" if _describe_field(hint) else "")
            for name, hint in record_fields(record).items()
        ]
        about = f"{_first_sentence(record)}: " if len(records) > 1 else ""
        told.append(about + ", ".join(names))
    return "; ".join(told)


def _describe_field(hint: Any) -> str:
    """Return the description of a field of type ``hint`` or, without one, of its record; then its possible strings."""
    inner = _record_types_in(hint)
    found = split_annotated_type(hint).description or (_first_sentence(inner[0]) if len(inner) == 1 else "")
    words = [f"`{word}`" for one in _union_members(hint) for word in _allowed_words(one)]
    if all(word in found for word in words):
        return found
    said = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    return f"{found}: {said}" if found else said


def _allowed_words(hint: Any) -> tuple[str, ...]:
    part = split_annotated_type(hint)
    if isinstance(part.limit, OneOf):
        return part.limit.words
    return get_args(part.kind) if part.origin is Literal else ()


def _first_sentence(record: Any) -> str:
    """Return the first line of a record's docstring, in lower case and without full stop, for use in a sentence."""
    first = (record.__doc__ or "").partition("\n")[0].removesuffix(".")
    return f"{first[:1].lower()}{first[1:]}"


def _union_members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union type; any other type as a tuple of itself."""
    part = split_annotated_type(hint)
    return get_args(part.kind) if part.origin is Union else (hint,)


def _record_types_in(hint: Any) -> list[Any]:
    """Return the record types (TypedDict) that a field of type ``hint`` may contain, directly or in lists and dicts."""
    kind = split_annotated_type(hint).kind
    if is_typeddict(kind):
        return [kind]
    return [record for one in get_args(kind) if not isinstance(one, str) for record in _record_types_in(one)]
