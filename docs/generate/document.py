"""A document with blocks between markers that are written from figures, and the rest by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.bench.stored_figures import MissingError
from app.errors import UserError
from app.files.writing import replacing
from docs.generate.figures import Figures

MARKED = re.compile(r"<!-- (\w+):begin -->\n(.*?)<!-- \1:end -->", re.DOTALL)
MARKER = re.compile(r"<!-- (\w+):(?:begin|end) -->")


@dataclass(frozen=True)
class Document:
    """blocks: marker → what is written between its begin and its end. by_hand: markers that are none of ours."""

    path: Path
    blocks: Mapping[str, Callable[[Figures], str]]
    by_hand: tuple[str, ...] = ()

    def read(self) -> str:
        """Its text. Raises UserError."""
        try:
            return self.path.read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}; restore it from the repository") from error

    def block(self, name: str, figures: Figures) -> str:
        """One block's text, a line feed at its end. Raises MissingError if a file of figures is not there yet."""
        return f"{self.blocks[name](figures)}\n"

    def check_markers(self, text: str) -> None:
        """Raises UserError unless every block has its begin and end, once, in this order, and no other is there."""
        marked = [match[1] for match in MARKED.finditer(text)]
        for name in self.blocks:
            if marked.count(name) != 1:
                times = marked.count(name)
                raise UserError(f"{self.path}: block {name} is there {times} times, must be once: mend its markers")
        for name in MARKER.findall(text):
            if name not in (*self.blocks, *self.by_hand):
                raise UserError(f"{self.path}: block {name} is unknown: known are {', '.join(self.blocks)}")

    def rewritten(self, text: str, figures: Figures) -> tuple[str, list[MissingError]]:
        """The text with every block written anew; one whose figures are missing stays, and its reason is returned."""
        self.check_markers(text)
        missing: dict[str, MissingError] = {}

        def fill(match: re.Match[str]) -> str:
            if match[1] in self.by_hand:
                return match[0]
            try:
                content = self.block(match[1], figures)
            except MissingError as reason:
                missing.setdefault(str(reason), reason)
                content = match[2]
            return f"<!-- {match[1]}:begin -->\n{content}<!-- {match[1]}:end -->"

        return MARKED.sub(fill, text), list(missing.values())

    def write(self, figures: Figures) -> list[MissingError]:
        """Rewrite the file; returns what is missing. Raises UserError."""
        text = self.read()
        found, missing = self.rewritten(text, figures)
        if found != text:
            with replacing(self.path) as temporary:
                temporary.write_text(found, encoding="utf-8")
        return missing
