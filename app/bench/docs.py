"""``python -m app.bench.docs``: writes figures into docs/kernels.md, docs/systems.md and README.md, draws pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from app.bench import docs_pictures, docs_profile, docs_story, docs_systems, docs_tables, docs_targets, docs_verdicts
from app.bench.docs_data import FIGURES, NETWORKS, PROFILE, RESOURCES
from app.bench.docs_document import Document
from app.bench.docs_figures import Figures
from app.console import Parser, guarded
from app.errors import UserError
from app.interrupts import exit_with

ROOT = Path(__file__).parents[2]
CONV_STEPS, GEMM_STEPS = range(14), range(6)
Block = Callable[[Figures], str]


def _gain(operation: str, step: int) -> Block:
    return lambda figures: docs_story.gains(figures.benches, operation).get(step, "Not measured.")


def _ladder(network: str) -> Block:
    return lambda figures: docs_tables.ladder(figures.bench(network))


def _batches(network: str) -> Block:
    return lambda figures: docs_tables.batches(figures.bench(network))


def _system(network: str) -> Block:
    return lambda figures: docs_systems.system(network, figures)


KERNELS = Document(
    ROOT / "docs" / "kernels.md",
    {
        "header": lambda figures: docs_tables.header(figures.benches),
        "targets": lambda figures: docs_targets.targets(figures.benches),
        "verdicts": lambda figures: docs_verdicts.verdicts(figures.benches, figures.old),
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
    },
)
SYSTEMS = Document(
    ROOT / "docs" / "systems.md",
    {
        "commands": docs_systems.commands,
        **{network: _system(network) for network in docs_systems.SYSTEMS},
        "training": docs_systems.training,
    },
)
README = Document(ROOT / "README.md", {"accuracy": docs_systems.accuracies}, by_hand=("sample", "measured"))
DOCUMENTS = (KERNELS, SYSTEMS, README)


def write(documents: Sequence[Document] = DOCUMENTS, folder: Path = FIGURES) -> int:
    """Rewrite the documents from the figures in the folder. Returns 0; raises UserError, also if some are missing."""
    figures = Figures(folder)
    missing = {str(reason): reason for document in documents for reason in document.write(figures)}
    if missing:
        more = f" (and {len(missing) - 1} more files)" if len(missing) > 1 else ""
        raise UserError(f"{next(iter(missing))}{more}")
    for document in documents:
        print(f"{document.path}: {len(document.blocks)} blocks are up to date")
    return 0


def main() -> int:
    """The program."""
    description = "Write the figures of docs/benchmarks/*.json and weights/*.h5 into docs/ and README.md."
    parser = Parser(prog="python -m app.bench.docs", description=description, allow_abbrev=False)
    parser.add_argument("--draw", action="store_true", help="also draw docs/images/ anew (matplotlib)")
    drawn = docs_pictures.draw(FIGURES) if parser.parse_args().draw else []
    for path in drawn:
        print(f"{path}: drawn")
    stale = docs_pictures.stale(FIGURES)
    write()
    if stale:
        raise UserError(f"{docs_pictures.FOLDER / stale[0]} shows another run than the tables: add --draw")
    return 0


if __name__ == "__main__":
    exit_with(guarded(main))
