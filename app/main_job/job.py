"""Run the main job: load network and images, classify them, check the labels, and print the report."""

from dataclasses import replace
from functools import partial

import numpy as np

from app.base.clock import Stopwatch
from app.base.errors import UserError, print_to_stderr
from app.base.interrupts import exit_on_interrupt
from app.cuda import device
from app.engine.request import UNLABELLED, RunRequest
from app.main_job.images import load_images
from app.main_job.report import as_text, build_report
from app.main_job.result import Outcome
from app.network.graph import Graph, load_network
from app.network.reference import compute_reference, load_reference
from app.network.verdicts import Accuracy, Agreement, compare_labels, judge_answers
from app.network.weights import Weights
from app.terminal.output import publish_report
from data_tools.dataset import Dataset
from data_tools.fashion_mnist import start_reading_split

RECHECKED = 1000  # images to recompute if no reference labels are stored
DEFAULT_BATCH = 10_000


def run(request: RunRequest, watch: Stopwatch) -> int:
    """Run the main job and print its report; return 0 if its checks passed, otherwise 1. Raises UserError.

    watch: stopwatch of the command, with the time spent so far.
    """
    # Load.
    if request.images.data is None:
        start_reading_split(request.images.split or "test", request.images.data_dir)
    with exit_on_interrupt():
        graph, weights = load_network(request.network.network, request.network.weights)
        watch.lap("weights")
        where, why_not = device.choose_device(request.device, watch.lap)
    if why_not is not None:
        print_to_stderr(f"note: running on the CPU: {why_not}")
    watch.lap("context")
    chosen = None
    if where == "cuda" or {*request.network.kernels.values()} != {"auto"}:
        with exit_on_interrupt():  # the CPU needs no kernels, but wrong kernel names are reported
            from app.planning.choices import resolve_choices
        chosen = resolve_choices(request.network, graph)
        watch.lap("import")
    if where == "cpu":
        request.reject_gpu_options()
    with device.translate_gpu_errors():  # page-locked memory may run out
        data, graph = load_data(request, graph, where == "cuda")
    batch = batch_size(request, data)
    if data.labels is None and request.images.labels is None:
        told = f"{data.source} has no labels: the answers are compared with nothing; --labels FILE names labels"
        print_to_stderr(f"note: {told}")
    watch.lap("data")
    # Run.
    if chosen is None:
        from app.main_job.cpu_run import run_on_cpu

        watch.lap("import")
        outcome = run_on_cpu(request, graph, data, batch, watch.lap)
    else:
        from app.main_job.gpu_run import run_on_gpu

        with device.translate_gpu_errors():
            outcome = run_on_gpu(request, graph, chosen, data, batch, watch.lap)
    # Check.
    agreement_of = partial(compare_with_reference, graph, weights, data, request.recheck)
    accuracy = judge_labels(
        graph, weights, data, outcome, agreement_of(outcome.labels, outcome.arithmetic), request.min_accuracy
    )
    other = outcome.compared
    differing = None if other is None else agreement_of(other.labels, other.arithmetic)
    # Report.
    report = build_report(graph, weights, data, batch, outcome, accuracy, watch.spent, watch.elapsed, differing)
    publish_report(report, as_text, request.output)
    return 0 if accuracy.passed else 1


def load_data(request: RunRequest, graph: Graph, on_gpu: bool) -> tuple[Dataset, Graph]:
    """Return images (page-locked for a GPU), labels, and the graph for the images' shape. Raises UserError.

    Wrong options are reported before Fashion-MNIST is fetched.
    """
    wanted = request.images
    unlabelled = wanted.labels == UNLABELLED
    if unlabelled and request.min_accuracy is not None:
        raise UserError("--min-accuracy needs labels: leave it out with --labels none")
    data, fitting = load_images(wanted, graph, partial(batch_size, request), _allocate_pinned if on_gpu else None)
    if data.labels is None and request.min_accuracy is not None:
        raise UserError(f"--min-accuracy needs labels: name those of {wanted.data} with --labels FILE")
    return data, fitting


def _allocate_pinned(nbytes: int) -> np.ndarray:
    """Return page-locked memory, (nbytes,) uint8."""
    from app.cuda.memory import pinned_array

    return pinned_array((nbytes,), np.uint8)


def batch_size(request: RunRequest, data: Dataset) -> int:
    """Return how many images to classify. Raises UserError if ``data`` has fewer, unless ``--cycle`` repeats them."""
    available = len(data.images)
    batch = min(DEFAULT_BATCH, available) if request.batch is None else request.batch
    if batch > available and not request.images.cycle:
        raise UserError(
            f"--batch {batch} is more than the {available} images of {data.source}: "
            "add --cycle to repeat them, or use fewer"
        )
    return batch


def compare_with_reference(
    graph: Graph, weights: Weights, data: Dataset, recheck: bool, labels: np.ndarray, dtype: str
) -> Agreement:
    """Return how far labels (N,) agree with the float64 reference, stored or computed now for the first images.

    recheck: compute the reference again, for all images. dtype: type in which the labels were computed.
    """
    stored = load_reference(weights, graph.network) if data.split == "test" and not recheck else None
    if stored is not None:
        return compare_labels(labels, stored, "stored float64 reference", dtype)
    images = data.images[: len(labels) if recheck else min(len(labels), RECHECKED)]
    found = compute_reference(graph, images)
    agreement = compare_labels(labels, found, "recomputed float64 reference", dtype)
    # Equal labels prove nothing if the reference is constant.
    if found.has_constant_scores and (images != images[0]).any():
        fault = f"scores are the same for all {len(images)} images by the {agreement.source}"
        return replace(agreement, fault=agreement.fault or fault)
    return agreement


def judge_labels(
    graph: Graph, weights: Weights, data: Dataset, outcome: Outcome, agreement: Agreement, least: float | None
) -> Accuracy:
    """Return two verdicts: ``agreement``, and one on the share of right labels. least: required share; None for any."""
    labels, expected = outcome.labels, None
    truth = None if data.labels is None else data.labels[: len(labels)]
    if outcome.cycle is not None:
        agreement = replace(agreement, steady=True)
        if outcome.cycle.unsteady:
            fault = f"{outcome.cycle.unsteady} passes over the data gave other labels than the first"
            agreement = replace(agreement, fault=fault)
    if data.split == "test":
        expected = weights.promised_correct_count(graph.network, len(labels))
    return judge_answers(labels, truth, expected, agreement, classes=graph.class_count, least=least)
