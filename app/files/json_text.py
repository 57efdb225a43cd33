"""Format documents as JSON."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_NUMBERS = re.compile(r"\[\s+[-+.\deE]+(?:,\s+[-+.\deE]+)+\s+\]")  # a newline: never within a string


def json_text(document: Mapping[str, object]) -> str:
    """Return the document as indented JSON, with each list of numbers, such as samples, in one line."""
    text = json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[0][1:-1].split())}]", text)


def _finite(value: Any) -> Any:
    """Replace numbers that JSON lacks by null: a margin is infinite where softmax leaves exactly 0."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
