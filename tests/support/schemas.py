"""Holds JSON documents against their descriptions in docs/schemas/."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


@cache
def described() -> dict[str, dict[str, Any]]:
    """The ``schema`` of a document → its description."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.json")]
    return {one["properties"]["schema"]["const"]: one for one in found if "properties" in one}


def mistakes(document: Any) -> list[str]:
    """Where the document, as read from JSON, is not as its own description says: one line each."""
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource

    common = Resource.from_contents(json.loads((FOLDER / "common.json").read_text(encoding="utf-8")))
    registry: Registry[Any] = Registry().with_resource("common.json", common)
    validator = Draft202012Validator(described()[document["schema"]], registry=registry)
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(document)]


def check_described(document: Any) -> None:
    """The document is as described. For tests on the card: where jsonschema is not installed, nothing is checked."""
    if importlib.util.find_spec("jsonschema") is not None:
        assert not mistakes(document)
