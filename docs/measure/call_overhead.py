"""Measure how much longer a call of ``Classifier`` on images in device memory takes than the kernel launches alone.

``python -m docs.measure.call_overhead`` prints both for several batch sizes, in microseconds of host time per call. The
host only enqueues work: the GPU is fast enough for these small batches, and the host waits for it between rounds.
"""

from collections.abc import Callable
from dataclasses import replace
from statistics import median

import cupy

from app.base.clock import Timer
from app.base.interrupts import exit_ignoring_signals, install_exit_handlers
from app.cuda.device import describe_gpu, require_gpu, translate_gpu_errors
from app.engine.classifier import Classifier
from app.engine.gpu import GpuEngine
from app.planning import tuning
from app.planning.choices import load_graph
from app.planning.plan import plan
from app.planning.request import NetworkRequest
from app.terminal.console import run_guarded
from app.terminal.text import Column, table

BATCHES = (1, 10, 100, 1000)
ROUNDS, CALLS = 50, 50
PRECISION = "fp16"


def measure_overhead(count: int, *, rounds: int = ROUNDS, calls: int = CALLS) -> tuple[float, float]:
    """Return median host µs for a batch of ``count`` images of lenet5: of the kernel launches alone, and of a call.

    A round times ``calls`` of each in a row; the images are on the GPU.
    """
    card = describe_gpu()
    graph, _, chosen = load_graph(NetworkRequest(precision=PRECISION))
    execution = plan(graph, card["architecture"], replace(chosen, tuning=tuning.load(card["name"])))
    stream = cupy.cuda.Stream(non_blocking=True)
    with Classifier(device="cuda", precision=PRECISION) as classifier, GpuEngine(execution) as engine, stream:
        images = cupy.empty((count, 28, 28), "uint8")
        labels, scores = engine.run_on_card(images, stream)
        classifier(images, on_card=True)
        addresses = (images.data.ptr, labels.data.ptr, scores.data.ptr)

        def launch_kernels() -> None:
            engine.card_runner.enqueue(stream.ptr, count, addresses)

        def call_classifier() -> None:
            classifier(images, on_card=True)

        actions = launch_kernels, call_classifier
        samples = [[_time_per_call(action, calls, stream) for action in actions] for _ in range(rounds)]
    return median(row[0] for row in samples), median(row[1] for row in samples)


def _time_per_call(action: Callable[[], None], calls: int, stream: cupy.cuda.Stream) -> float:
    stream.synchronize()
    timer = Timer()
    for _ in range(calls):
        action()
    taken = timer.seconds * 1e6 / calls
    stream.synchronize()
    return taken


def main() -> int:
    """Print the table of times; return 0. Raises UserError without a GPU."""
    require_gpu("call_overhead")
    with translate_gpu_errors():
        measured = {count: measure_overhead(count) for count in BATCHES}
    columns = (Column("images"), Column("launches µs"), Column("call µs"), Column("overhead µs"))
    rows = [
        (f"{count:,}", f"{launches:.1f}", f"{call:.1f}", f"{call - launches:.1f}")
        for count, (launches, call) in measured.items()
    ]
    print("\n".join(table(columns, rows)))
    return 0


if __name__ == "__main__":
    install_exit_handlers()
    exit_ignoring_signals(run_guarded(main))
