"""``python -m docs.generate``: writes figures into docs/kernels.md, docs/systems.md and README.md, draws pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from app.bench.stored_figures import FIGURES, NETWORKS, PROFILE, RESOURCES
from app.console import Parser, guarded
from app.errors import UserError
from app.interrupts import exit_with
from docs.generate import pictures, profile, story, systems, tables, targets, verdicts
from docs.generate.document import Document
from docs.generate.figures import Figures

ROOT = Path(__file__).parents[2]
CONV_STEPS, GEMM_STEPS = range(14), range(6)
Block = Callable[[Figures], str]


def _gain(operation: str, step: int) -> Block:
    return lambda figures: story.gains(figures.benches, operation).get(step, "Not measured.")


def _ladder(network: str) -> Block:
    return lambda figures: tables.ladder(figures.bench(network))


def _batches(network: str) -> Block:
    return lambda figures: tables.batches(figures.bench(network))


def _system(network: str) -> Block:
    return lambda figures: systems.system(network, figures)


KERNELS = Document(
    ROOT / "docs" / "kernels.md",
    {
        "header": lambda figures: tables.header(figures.benches),
        "targets": lambda figures: targets.targets(figures.benches),
        "verdicts": lambda figures: verdicts.verdicts(figures.benches, figures.old),
        **{f"conv{step:02}": _gain("conv", step) for step in CONV_STEPS},
        **{f"gemm{step:02}": _gain("gemm", step) for step in GEMM_STEPS},
        "pooling": lambda figures: tables.by_layer(figures.benches, "pool"),
        "activation": lambda figures: tables.by_layer(figures.benches, "activation"),
        "fully_connected": lambda figures: tables.by_layer(figures.benches, "gemm"),
        "fused": lambda figures: tables.fused(figures.benches),
        "whole_program": lambda figures: tables.whole_program(figures.benches),
        **{f"ladder_{network}": _ladder(network) for network in NETWORKS},
        **{f"batches_{network}": _batches(network) for network in NETWORKS},
        "profile": lambda figures: profile.profile(figures[PROFILE]),
        "resources": lambda figures: profile.resources(figures[RESOURCES]),
    },
)
SYSTEMS = Document(
    ROOT / "docs" / "systems.md",
    {
        "commands": systems.commands,
        **{network: _system(network) for network in systems.SYSTEMS},
        "training": systems.training,
    },
)
README = Document(ROOT / "README.md", {"accuracy": systems.accuracies}, by_hand=("sample", "measured"))
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
    parser = Parser(prog="python -m docs.generate", description=description, allow_abbrev=False)
    parser.add_argument("--draw", action="store_true", help="also draw docs/images/ anew (matplotlib)")
    drawn = pictures.draw(FIGURES) if parser.parse_args().draw else []
    for path in drawn:
        print(f"{path}: drawn")
    stale = pictures.stale(FIGURES)
    write()
    if stale:
        raise UserError(f"{pictures.FOLDER / stale[0]} shows another run than the tables: add --draw")
    return 0


if __name__ == "__main__":
    exit_with(guarded(main))
