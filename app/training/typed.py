"""Options of ``train`` whose value is more than a word or a number: from what was typed, and back to it."""

from __future__ import annotations

from typing import Any

from app.errors import UserError

Dropout = tuple[tuple[str, float], ...]


def dropout(text: str) -> Dropout:
    """(layer, share) pairs, in the order of the layers' names. Raises UserError unless it is LAYER=SHARE,… or none."""
    if text == "none":
        return ()
    parts: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        if name in parts:
            raise UserError(f"--dropout {text} names layer {name} twice: give it one share")
        try:
            parts[name] = float(share)
        except ValueError:
            parts[name] = -1
        if not (name and 0 <= parts[name] < 1):
            raise UserError(f"--dropout {text}: say LAYER=SHARE,… with shares from 0 to below 1, or none")
    return tuple(sorted(parts.items()))


def typed(name: str, value: Any) -> str:
    """The option of ``train`` by which that setting has that value."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    if name == "dropout":
        return f"--dropout {','.join(f'{layer}={share}' for layer, share in sorted(value)) or 'none'}"
    return f"--{option} {value}"
