"""Run the command ``python -m app.lab.calls``."""

from functools import cache
from typing import cast

import numpy as np
from tqdm import tqdm

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.base.interrupts import exit_ignoring_signals, exit_on_interrupt, install_exit_handlers
from app.cuda import device
from app.lab.bench import cudnn
from app.lab.calls.callers import KINDS, NETWORK, TorchPool, open_classifier, parse_kinds
from app.lab.calls.measure import Setup, measure_kind
from app.lab.calls.text import as_text
from app.lab.document import utc_date
from app.records.calls import Calls
from app.records.parts import Card
from app.terminal.console import Parser, run_guarded, whole_number_type
from app.terminal.options import add_options, option, options, request_from_values
from app.terminal.output import Output, check_outputs, publish_report

PROGRAM = f"python -m {__package__}"
DESCRIPTION = "Time calls of Classifier as a program sees them, beside PyTorch (GPU)."
EPILOG = f"""\
rows:
{{rows}}

Each row is a kind of call, timed as a program makes it: images in, labels out.
Beside Classifier stand PyTorch's eager network and torch.compile in the same
precision (fp32x beside fp32, and beside tf32), each in its fastest setting:
memory layout, CUDA graph, page-locked copy of the images first or not. All
callers take turns on the same arrays. Compiling takes some minutes in all, and
PyTorch keeps what it compiled for the next run. Without PyTorch only Classifier
is timed. See docs/api.md.

examples:
  {PROGRAM}
  {PROGRAM} --only 1,1-resident
  {PROGRAM} --quick --json calls.json
"""


class CallsRequest(Frozen, kw_only=True):
    """The options of ``python -m app.lab.calls``."""

    only: str | None = option("time only these rows", metavar="ROW,…")
    rounds: int = option("turns of each caller (default: 7)", 7, type=whole_number_type(1, 1000), metavar="N")
    quick: bool = option("compile PyTorch's networks in one memory layout, not in both", False)
    output: Output = options("output", what="all figures")


def run(request: CallsRequest) -> int:
    """Time the calls, print and write the times. Return 1 if ``Classifier`` was wrong, else 0. Raises UserError."""
    kinds = parse_kinds(request.only)
    device.require_gpu(PROGRAM)
    with exit_on_interrupt():
        from app.lab.peers.peers import installed_versions, redirect_output_to_stderr
    with device.translate_gpu_errors(), redirect_output_to_stderr():
        setup = make_card_setup(quick=request.quick)
        with tqdm(desc="calls", unit=" steps", disable=None) as progress:

            def show_step(what: str) -> None:
                progress.set_postfix_str(what)
                progress.update()

            rows = [measure_kind(kind, setup, request.rounds, show_step) for kind in kinds]
        setup.peers.close()
    only = f" --only {request.only}" if request.only else ""
    document: Calls = {
        "schema": "lenet5-inference/calls/1",
        "date": utc_date(),
        "command": f"{PROGRAM} --rounds {request.rounds}{only}{' --quick' * request.quick}",
        "network": NETWORK,
        "device": cast(Card, device.describe_gpu()),
        "software": installed_versions(),
        "rounds": request.rounds,
        "rows": rows,
    }
    publish_report(document, as_text, request.output)
    return int(any(row["wrong"] for row in rows))


def make_card_setup(*, quick: bool) -> Setup:
    """Return images, labels and engines for all kinds of calls. quick: fewer PyTorch settings. Raises UserError."""
    import cupy

    from app.cuda.memory import pinned_array, pinned_copy
    from app.engine.opening import open_engine
    from app.lab.batch import load_batch
    from app.planning.matching import Choices

    batch = load_batch(NETWORK, max(kind.images for kind in KINDS))
    images = batch.images.copy()  # pageable

    @cache
    def engine_labels(precision: str) -> np.ndarray:
        with open_engine(batch.graph, Choices(precision), device="cuda") as engine:
            return engine.run(images).labels

    peers = TorchPool(batch.graph, pinned_array, quick=quick)
    synchronize = cupy.cuda.runtime.deviceSynchronize
    return Setup(images, engine_labels, open_classifier, peers, pinned_copy, to_card_tensor, synchronize)


def to_card_tensor(array: np.ndarray) -> object:
    """Return a copy of an array as a PyTorch tensor on the card. Raises UserError without PyTorch."""
    if (missing := cudnn.why_no_cudnn()) is not None:
        raise UserError(missing)
    import torch

    return torch.from_numpy(array).to("cuda")


def command_parser() -> Parser:
    """Return the parser of the command line, whose help lists the rows."""
    rows = "\n".join(f"  {kind.name:<17} {kind.description}, {kind.precision}" for kind in KINDS)
    made = Parser(prog=PROGRAM, description=DESCRIPTION, epilog=EPILOG.format(rows=rows))
    add_options(made, CallsRequest)
    return made


def main() -> int:
    """Run the program; return its exit code."""
    found = vars(command_parser().parse_args())
    check_outputs(found)
    return run(request_from_values(CallsRequest, found))


if __name__ == "__main__":
    install_exit_handlers()
    exit_ignoring_signals(run_guarded(main))
