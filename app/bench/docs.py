"""``python -m app.bench.docs``: writes the measured figures into docs/kernels.md, between its markers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.bench import docs_profile, docs_story, docs_tables, docs_targets, docs_verdicts
from app.bench.docs_data import (
    BENCH,
    FIGURES,
    NETWORKS,
    OLD_REPORTS,
    PROFILE,
    RESOURCES,
    Bench,
    MissingError,
    load,
    old_reports,
)
from app.console import Parser, guarded
from app.errors import UserError
from app.paths import replacing

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = DOCS / "kernels.md"
MARKED = re.compile(r"<!-- (\w+):begin -->\n(.*?)<!-- \1:end -->", re.DOTALL)
MARKER = re.compile(r"<!-- (\w+):(?:begin|end) -->")
CONV_STEPS, GEMM_STEPS = range(14), range(6)


class Figures:
    """The JSON files of one folder, each read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded: dict[str, dict[str, Any]] = {}

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name not in self._loaded:
            self._loaded[name] = load(self._folder, name)
        return self._loaded[name]

    def bench(self, network: str) -> Bench:
        """One network's measurements."""
        return Bench(network, self[BENCH[network]])

    @property
    def benches(self) -> Mapping[str, Bench]:
        """Those of all networks."""
        return {network: self.bench(network) for network in NETWORKS}

    def ladder(self, network: str) -> str:
        """The network's ladder, then what its report had."""
        report = old_reports(self[OLD_REPORTS])[network]
        bench = self.bench(network)
        return f"{docs_tables.ladder(bench)}\n\n{docs_story.beside_old(bench, report)}"


def _gain(operation: str, step: int) -> Callable[[Figures], str]:
    def block(figures: Figures) -> str:
        return docs_story.gains(figures.benches, operation).get(step, "Not measured.")

    return block


def _ladder(network: str) -> Callable[[Figures], str]:
    return lambda figures: figures.ladder(network)


def _batches(network: str) -> Callable[[Figures], str]:
    return lambda figures: docs_tables.batches(figures.bench(network))


# Marker → what is written between its begin and its end.
BLOCKS: dict[str, Callable[[Figures], str]] = {
    "header": lambda figures: docs_tables.header(figures.benches),
    "targets": lambda figures: docs_targets.targets(figures.benches),
    "verdicts": lambda figures: docs_verdicts.verdicts(figures.benches, old_reports(figures[OLD_REPORTS])),
    **{f"conv{step:02}": _gain("conv", step) for step in CONV_STEPS},
    **{f"gemm{step:02}": _gain("gemm", step) for step in GEMM_STEPS},
    "pooling": lambda figures: docs_tables.by_layer(figures.benches, "pool"),
    "activation": lambda figures: docs_tables.by_layer(figures.benches, "activation"),
    "fully_connected": lambda figures: docs_tables.by_layer(figures.benches, "gemm"),
    "fused": lambda figures: docs_tables.fused(figures.benches),
    "whole_program": lambda figures: docs_tables.whole_program(figures.benches),
    **{f"ladder_{network}": _ladder(network) for network in NETWORKS},
    **{f"batches_{network}": _batches(network) for network in NETWORKS},
    "profile": lambda figures: docs_profile.profile(figures[PROFILE]),
    "resources": lambda figures: docs_profile.resources(figures[RESOURCES]),
}


def block(name: str, figures: Figures) -> str:
    """One block's text, a line feed at its end. Raises MissingError if a file of figures is not there yet."""
    return f"{BLOCKS[name](figures)}\n"


def check_markers(text: str) -> None:
    """Raises UserError unless every block has its begin and end, once, in this order, and no other is there."""
    marked = [match[1] for match in MARKED.finditer(text)]
    for name in BLOCKS:
        if marked.count(name) != 1:
            raise UserError(f"block {name} is there {marked.count(name)} times, must be once: mend its markers")
    for name in MARKER.findall(text):
        if name not in BLOCKS:
            raise UserError(f"block {name} is unknown: known are {', '.join(BLOCKS)}")


def rewritten(text: str, figures: Figures) -> tuple[str, list[MissingError]]:
    """The document with every block written anew; one whose figures are missing stays, and its reason is returned."""
    check_markers(text)
    missing: dict[str, MissingError] = {}

    def fill(match: re.Match[str]) -> str:
        try:
            content = block(match[1], figures)
        except MissingError as reason:
            missing.setdefault(str(reason), reason)
            content = match[2]
        return f"<!-- {match[1]}:begin -->\n{content}<!-- {match[1]}:end -->"

    return MARKED.sub(fill, text), list(missing.values())


def write(document: Path = DOCUMENT, folder: Path = FIGURES) -> int:
    """Rewrite the document from the figures in the folder. Returns 0; raises UserError, also if some are missing."""
    try:
        text = document.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {document}: {error.strerror}; restore it from the repository") from error
    found, missing = rewritten(text, Figures(folder))
    if found != text:
        with replacing(document) as temporary:
            temporary.write_text(found, encoding="utf-8")
    if missing:
        more = f" (and {len(missing) - 1} more files)" if len(missing) > 1 else ""
        raise UserError(f"{missing[0]}{more}")
    print(f"{document}: {len(BLOCKS)} blocks are up to date")
    return 0


def main() -> int:
    """The program."""
    description = "Write the figures of docs/benchmarks/*.json into docs/kernels.md."
    Parser(prog="python -m app.bench.docs", description=description, allow_abbrev=False).parse_args()
    return write()


if __name__ == "__main__":
    sys.exit(guarded(main))
