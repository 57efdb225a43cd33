"""Write the measured figures into the documents and draw their pictures: ``python -m docs.generate``."""

import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cogapp import Cog
from cogapp.cogapp import CogError

from app.base.errors import UserError
from app.base.interrupts import exit_ignoring_signals
from app.files.writing import replace_atomically
from app.network import definitions
from app.terminal.console import Parser, run_guarded
from docs.generate import calls, goals, pictures, records, scale, steps, systems, tables, targets
from docs.generate.figures import FIGURES, NETWORKS, Figures, MissingError

ROOT = Path(__file__).parents[2]
MARKER = re.compile(r"\[\[\[cog (\w+)\(\) \]\]\]")


@dataclass(frozen=True)
class Document:
    """A Markdown document. blocks: name of a block, as in its marker → function that returns the block's text."""

    path: Path
    blocks: Mapping[str, Callable[[Figures], str]]

    def read(self) -> str:
        """Return the text of the file. Raises UserError."""
        try:
            return self.path.read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}; restore it from the repository") from error

    def render_block(self, name: str, figures: Figures) -> str:
        """Return the text of a block, ending in a newline. Raises MissingError if its figures do not exist yet."""
        return f"{self.blocks[name](figures)}\n"

    def check_markers(self, text: str) -> None:
        """Raise UserError unless ``text`` has one marker for each block and no other markers."""
        times = Counter(MARKER.findall(text))
        for name in {**self.blocks, **times}:
            if name not in self.blocks:
                raise UserError(f"{self.path}: block {name} is unknown: known are {', '.join(self.blocks)}")
            if times[name] != 1:
                raise UserError(f"{self.path}: block {name} occurs {times[name]} times: mend its markers")

    def rewrite_blocks(self, text: str, figures: Figures) -> tuple[str, list[MissingError]]:
        """Return the text with rewritten blocks, and the errors of blocks that stay because figures are missing."""
        self.check_markers(text)
        made: dict[str, str] = {}
        missing: list[MissingError] = []
        for name in self.blocks:
            try:
                made[name] = self.render_block(name, figures)
            except MissingError as reason:
                missing.append(reason)
        cog, output = Cog(), io.StringIO()

        def write_block(name: str) -> None:
            cog.cogmodule.out(made.get(name, cog.cogmodule.previous))

        names = {name: partial(write_block, name) for name in self.blocks}
        try:
            cog.process_file(io.StringIO(text), output, str(self.path), names)
        except (CogError, SyntaxError) as error:
            raise UserError(f"{self.path}: {str(error).splitlines()[-1]}: mend its markers") from error
        return output.getvalue(), missing

    def write(self, figures: Figures) -> list[MissingError]:
        """Rewrite the blocks in the file; return the errors of blocks without figures, which stay. Raises UserError."""
        text = self.read()
        found, missing = self.rewrite_blocks(text, figures)
        if found != text:
            with replace_atomically(self.path) as temporary:
                temporary.write_text(found, encoding="utf-8")
        return missing


KERNELS = Document(
    ROOT / "docs" / "kernels.md",
    {
        "header": tables.measurement_header,
        "targets": targets.targets_table,
        "expected": targets.expected_times_table,
        "convolutions": partial(steps.step_sections, "conv"),
        "products": partial(steps.step_sections, "gemm"),
        "pooling": partial(tables.layer_times_table, "pool"),
        "activation": partial(tables.layer_times_table, "activation"),
        "fully_connected": partial(tables.layer_times_table, "gemm"),
        "fused": tables.fused_layers_table,
        "whole_program": tables.end_to_end_table,
        **{f"ladder_{network}": partial(tables.ladder_table, network) for network in NETWORKS},
        **{f"batches_{network}": partial(tables.batch_sizes_table, network) for network in NETWORKS},
        "profile": tables.profile_tables,
        "resources": tables.resources_table,
    },
)
SYSTEMS = Document(
    ROOT / "docs" / "systems.md",
    {
        "commands": systems.commands_block,
        "goals": goals.goals_table,
        **{network: partial(systems.network_section, network) for network in definitions.SYSTEMS},
    },
)
BENCHMARKS = Document(
    ROOT / "docs" / "benchmarks.md",
    {"peers": systems.all_networks_table, "accuracy": partial(systems.accuracy_table, definitions.SYSTEMS)},
)
SCALE = Document(
    ROOT / "docs" / "scale.md",
    {
        "throughput": scale.throughput_table,
        "goals": scale.goals_table,
        "costs": scale.costs_table,
        "jobs": scale.job_times_table,
        "limits": scale.throughput_limits_table,
    },
)
API = Document(ROOT / "docs" / "api.md", {"calls": calls.calls_table})
LANGUAGES = Document(
    ROOT / "docs" / "languages.md", {"files": calls.language_features_table, "languages": calls.language_times_table}
)
REPORT = Document(ROOT / "docs" / "report.md", records.field_tables("report"))
BENCH_JSON = Document(ROOT / "docs" / "bench_json.md", records.field_tables("bench", "peers", "peer-settings"))
JSON = Document(ROOT / "docs" / "json.md", {"documents": records.document_table})
DOCUMENTS = (KERNELS, SYSTEMS, BENCHMARKS, SCALE, API, LANGUAGES, REPORT, BENCH_JSON, JSON)


def write_documents(documents: Sequence[Document] = DOCUMENTS, folder: Path = FIGURES) -> None:
    """Rewrite the documents with the figures in ``folder``. Raises UserError, also if some figures are missing."""
    figures = Figures(folder)
    missing = {str(reason): reason for document in documents for reason in document.write(figures)}
    if missing:
        more = f" (and {len(missing) - 1} more files)" if len(missing) > 1 else ""
        raise UserError(f"{next(iter(missing))}{more}")
    for document in documents:
        print(f"{document.path}: {len(document.blocks)} blocks are up to date")


def main() -> int:
    """Write the figures into the documents, and with ``--draw`` draw the pictures. Return 0. Raises UserError."""
    description = "Write the figures of docs/benchmarks/*.json and weights/*.h5 into docs/."
    parser = Parser(prog="python -m docs.generate", description=description)
    parser.add_argument("--draw", action="store_true", help="also draw docs/images/ anew")
    for path in pictures.draw_pictures(FIGURES) if parser.parse_args().draw else ():
        print(f"{path}: drawn")
    stale = pictures.stale_pictures(FIGURES)
    write_documents()
    if stale:
        raise UserError(f"{pictures.FOLDER / stale[0]} shows another run than the tables: add --draw")
    return 0


if __name__ == "__main__":
    exit_ignoring_signals(run_guarded(main))
