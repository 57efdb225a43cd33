"""A Markdown document whose measured blocks cog writes: ``<!-- [[[cog NAME() ]]] -->`` to ``<!-- [[[end]]] -->``."""

import io
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cogapp import Cog
from cogapp.cogapp import CogError

from app.errors import UserError
from app.files.writing import replacing
from docs.generate.figures import Figures, MissingError

MARKER = re.compile(r"\[\[\[cog (\w+)\(\) \]\]\]")


@dataclass(frozen=True)
class Document:
    """A file, and for each of its markers the function that writes the block."""

    path: Path
    blocks: Mapping[str, Callable[[Figures], str]]

    def read(self) -> str:
        """Return its text. Raises UserError."""
        try:
            return self.path.read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}; restore it from the repository") from error

    def block(self, name: str, figures: Figures) -> str:
        """Return one block, with a line feed at its end. Raises MissingError if its figures are not made yet."""
        return f"{self.blocks[name](figures)}\n"

    def check_markers(self, text: str) -> None:
        """Raise UserError unless every block has one marker and no marker is unknown."""
        times = Counter(MARKER.findall(text))
        for name in {**self.blocks, **times}:
            if name not in self.blocks:
                raise UserError(f"{self.path}: block {name} is unknown: known are {', '.join(self.blocks)}")
            if times[name] != 1:
                raise UserError(f"{self.path}: block {name} is there {times[name]} times: mend its markers")

    def rewritten(self, text: str, figures: Figures) -> tuple[str, list[MissingError]]:
        """Return the text with every block written anew, and what is missing: those blocks stay as they are."""
        self.check_markers(text)
        made: dict[str, str] = {}
        missing: list[MissingError] = []
        for name in self.blocks:
            try:
                made[name] = self.block(name, figures)
            except MissingError as reason:
                missing.append(reason)
        cog, output = Cog(), io.StringIO()

        def write(name: str) -> None:
            cog.cogmodule.out(made.get(name, cog.cogmodule.previous))

        names = {name: partial(write, name) for name in self.blocks}
        try:
            cog.process_file(io.StringIO(text), output, str(self.path), names)
        except (CogError, SyntaxError) as error:
            raise UserError(f"{self.path}: {str(error).splitlines()[-1]}: mend its markers") from error
        return output.getvalue(), missing

    def write(self, figures: Figures) -> list[MissingError]:
        """Rewrite the file; return what is missing. Raises UserError."""
        text = self.read()
        found, missing = self.rewritten(text, figures)
        if found != text:
            with replacing(self.path) as temporary:
                temporary.write_text(found, encoding="utf-8")
        return missing
