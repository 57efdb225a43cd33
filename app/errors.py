"""The one exception for users, and suggestions for mistyped names."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """An error that the user can correct: printed as one line, ``error: …``, with exit code 2.

    The text gives the cause, the place and the remedy; further arguments are further lines. Every module raises it for
    bad options, files, data, weights or devices; any other exception that escapes is a bug. Names of files in the text
    may have any characters: ``str`` spells out the unprintable ones.
    """

    def __str__(self) -> str:
        return "\n".join(escaped(str(line)) for line in self.args)


def escaped(text: str) -> str:
    """Return the text with every unprintable character spelled out, newlines too: ``\\n``, ``\\x1b``, ``\\udcff``."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def choice(word: str, known: Iterable[str]) -> str:
    """Return ``choose one of …``, the known names, and the one that ``word`` may have meant."""
    names = [*known]
    return f"choose one of {', '.join(names)}{suggestion(word, names)}"


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the known name nearest to ``word``, or ``""``; ignores leading hyphens."""
    names = {name.lstrip("-").lower(): name for name in known}
    typed = word.lstrip("-").lower()
    begun = [name for name in names if typed and name.startswith(typed)]
    near = begun or difflib.get_close_matches(typed, names, n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""
