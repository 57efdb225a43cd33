"""Holds JSON documents against their descriptions in docs/schemas/."""

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
    """Return where the document, as read from JSON, breaks its own description: one line each."""
    from docs.generate import checks

    return checks.mistakes(Path(described()[document["schema"]]["$id"]).stem, document)


def check_described(document: Any) -> None:
    """The document is as described. For tests on the card: where jsonschema is not installed, nothing is checked."""
    if importlib.util.find_spec("jsonschema") is not None:
        assert not mistakes(document)
