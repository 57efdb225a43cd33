"""Run the command ``python -m docs.languages``."""

import os
from typing import cast

from tqdm import tqdm

from app.base.errors import UserError, choices_hint
from app.base.frozen import Frozen
from app.base.interrupts import exit_ignoring_signals, exit_on_interrupt, install_exit_handlers
from app.cuda import device
from app.kernels.problems import tuning_key
from app.lab.document import utc_date
from app.planning import tuning
from app.records.languages import Languages
from app.records.parts import Card
from app.terminal.console import Parser, run_guarded, whole_number_type
from app.terminal.options import add_options, option, options, request_from_values
from app.terminal.output import Output, check_outputs, publish_report
from docs.languages.compare import INTERPRETERS, LANGUAGES, PROBLEM, TILE, Language, interpret
from docs.languages.text import as_text, hidden_lines, verdict_lines

PROGRAM = f"python -m {__package__}"
DESCRIPTION = "Judge and time one step of the ladder in other languages (GPU)."
EPILOG = f"""\
The step is the convolution on tensor cores, for conv2 of lenet5. The oracle of
bench judges every output. Languages that are not installed have a line without
times. --interpret judges them on the processor by their own interpreters. See
docs/languages.md.

examples:
  {PROGRAM}
  {PROGRAM} --json languages.json
  {PROGRAM} --interpret --only triton,jax
"""


class LanguagesRequest(Frozen, kw_only=True):
    """The options of ``python -m docs.languages``."""

    batch: int = option("images that are timed (default: 10,000)", 10_000, type=whole_number_type(1, 100_000))
    only: str | None = option("only these languages, by their packages", metavar="PACKAGE,…")
    interpret: bool = option("judge on the processor, without times", False)
    images: int = option("images to interpret (default: 1)", 1, type=whole_number_type(1, 100))
    output: Output = options("output", what="all figures")


def run(request: LanguagesRequest) -> int:
    """Judge the languages, print and write the figures. Return 1 if a kernel was wrong, else 0. Raises UserError."""
    chosen = choose_languages(request.only)
    if request.interpret:
        if request.output.json is not None:
            raise UserError("--interpret measures nothing, so there are no figures for --json: omit one of them")
        os.environ.update(INTERPRETERS)
        rows = [interpret(language, request.images) for language in tqdm(chosen, unit=" languages", disable=None)]
        print("\n".join([*verdict_lines(rows), "", *hidden_lines(rows)]))
        return int(any(row["wrong"] for row in rows))
    device.require_gpu(f"{PROGRAM} without --interpret")
    with exit_on_interrupt():
        from app.lab.peers.peers import redirect_output_to_stderr
        from docs.languages.on_card import BATCHES, measure_rows
    card = device.describe_gpu()
    known = tuning.load(card["name"])
    with device.translate_gpu_errors(), redirect_output_to_stderr():
        rows = [*tqdm(measure_rows(chosen, request.batch, card["architecture"], known), unit=" rows", disable=None)]
    only = f" --only {request.only}" if request.only else ""
    document: Languages = {
        "schema": "lenet5-inference/languages/1",
        "date": utc_date(),
        "command": f"{PROGRAM} --batch {request.batch}{only}",
        "device": cast(Card, card),
        "problem": tuning_key(PROBLEM),
        "tile": TILE,
        "images": request.batch,
        "batches": [*BATCHES],
        "rows": rows,
    }
    publish_report(document, as_text, request.output)
    return int(any(row["wrong"] for row in rows))


def choose_languages(only: str | None) -> list[Language]:
    """Return the languages whose packages ``only`` names, or all. Raises UserError for an unknown one."""
    known = {language.packages[0]: language for language in LANGUAGES}
    names = known if only is None else only.split(",")
    for name in names:
        if name not in known:
            raise UserError(f"--only {only}: {name} is no language here: {choices_hint(name, known)}")
    return [known[name] for name in names]


def main() -> int:
    """Run the program; return its exit code."""
    parser = Parser(prog=PROGRAM, description=DESCRIPTION, epilog=EPILOG)
    add_options(parser, LanguagesRequest)
    found = vars(parser.parse_args())
    check_outputs(found)
    return run(request_from_values(LanguagesRequest, found))


if __name__ == "__main__":
    install_exit_handlers()
    exit_ignoring_signals(run_guarded(main))
