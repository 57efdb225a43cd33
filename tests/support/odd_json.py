"""JSON documents with something odd in them, made from good ones."""

from __future__ import annotations

import json
import random
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 7, 2**31 - 1, 2**63, 10**400, 0.5, -0.0, 1e308, 1e-308),
    *("", "x", "\x00", "\udc80", "é" * 3000, "1", [], [[]], {}, {"": 0}),
)
GARBAGE = ("[" * 5000, "NaN", "1e999", "9" * 5000, '"', "\x00", "", "{", ",")


def mutated(value: Any, rng: random.Random) -> Any:
    """The document with one value somewhere odd, gone, renamed or there twice; the rest is shared with it."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(ODD)
    at: Any = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    changed: Any = value.copy()
    how = rng.random()
    if how < 0.1:
        changed.pop(at)
    elif how < 0.2 and isinstance(changed, list):
        changed.append(changed[at])
    elif how < 0.2:
        changed[rng.choice(["x", "epochs", "\n", *value])] = changed.pop(at)
    else:
        changed[at] = mutated(value[at], rng)
    return changed


def garbled(value: Any, rng: random.Random) -> str:
    """``mutated`` as text, one time in five with garbage in it."""
    text = json.dumps(mutated(value, rng))
    if rng.random() < 0.2:
        at = rng.randrange(len(text))
        return text[:at] + rng.choice(GARBAGE) + text[at + 1 :]
    return text
