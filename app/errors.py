"""The one exception for users, and suggestions for mistyped names."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """An error that the user can correct: printed as one line, ``error: …``, with exit code 2.

    The text gives the cause, the place and the remedy. Every module raises it for bad options, files, data, weights or
    devices; any other exception that escapes is a bug.
    """


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the known name nearest to ``word``, or ``""``; ignores leading hyphens."""
    names = {name.lstrip("-").lower(): name for name in known}
    typed = word.lstrip("-").lower()
    begun = [name for name in names if typed and name.startswith(typed)]
    near = begun or difflib.get_close_matches(typed, names, n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""
