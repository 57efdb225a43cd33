"""``python -m docs.generate``: writes the measured figures into the documents and draws their pictures."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from app.console import Parser, guarded
from app.errors import UserError
from app.interrupts import exit_with
from docs.generate import gains, pictures, systems, tables, targets
from docs.generate.document import Document
from docs.generate.figures import FIGURES, NETWORKS, Figures

ROOT = Path(__file__).parents[2]
STEPS = {"conv": range(14), "gemm": range(6)}

KERNELS = Document(
    ROOT / "docs" / "kernels.md",
    {
        "header": tables.header,
        "targets": targets.targets,
        "verdicts": gains.verdicts,
        **{
            f"{operation}{step:02}": partial(gains.gain, operation, step)
            for operation, steps in STEPS.items()
            for step in steps
        },
        "pooling": partial(tables.by_layer, "pool"),
        "activation": partial(tables.by_layer, "activation"),
        "fully_connected": partial(tables.by_layer, "gemm"),
        "fused": tables.fused,
        "whole_program": tables.whole_program,
        **{f"ladder_{network}": partial(tables.ladder, network) for network in NETWORKS},
        **{f"batches_{network}": partial(tables.batches, network) for network in NETWORKS},
        "profile": tables.profile,
        "resources": tables.resources,
    },
)
SYSTEMS = Document(
    ROOT / "docs" / "systems.md",
    {
        "commands": systems.commands,
        **{network: partial(systems.system, network) for network in systems.SYSTEMS},
        "training": systems.training,
    },
)
README = Document(ROOT / "README.md", {"accuracy": systems.accuracies})
DOCUMENTS = (KERNELS, SYSTEMS, README)


def write(documents: Sequence[Document] = DOCUMENTS, folder: Path = FIGURES) -> None:
    """Rewrite the documents from the figures in the folder. Raises UserError, also if some are missing."""
    figures = Figures(folder)
    missing = {str(reason): reason for document in documents for reason in document.write(figures)}
    if missing:
        more = f" (and {len(missing) - 1} more files)" if len(missing) > 1 else ""
        raise UserError(f"{next(iter(missing))}{more}")
    for document in documents:
        print(f"{document.path}: {len(document.blocks)} blocks are up to date")


def main() -> int:
    """Run the program. Returns its exit code."""
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
