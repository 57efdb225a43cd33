"""Run ``main.py evaluate``: report what a network classifies correctly, as text, JSON and HTML page."""

from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from app.base.errors import UserError, choices_hint, print_to_stderr
from app.base.interrupts import progress_bar
from app.base.precision import PRECISIONS
from app.commands.evaluate import EvaluateRequest
from app.engine.classifier import Classifier
from app.engine.classifier.arguments import network_request
from app.files.writing import replace_atomically
from app.images.evaluate.page import build_html_page
from app.images.evaluate.results import Answers, build_document
from app.images.evaluate.text import as_text
from app.main_job.images import graph_for_images, load_images
from app.network.definitions import NETWORKS, network_by_name
from app.network.toml import SUFFIX
from app.planning.request import NetworkRequest
from app.records.evaluate import EvaluatedNetwork
from app.terminal.output import publish_report
from data_tools.dataset import Dataset

PER_CALL = 1000  # images classified between two updates of the progress bar


def evaluate(request: EvaluateRequest) -> int:
    """Classify the images, evaluate the answers and publish them. Return 0. Raises UserError."""
    wanted = NetworkRequest(
        network=request.network, weights=request.weights, precision=request.precision, sparse=request.sparse
    )
    with ExitStack() as stack:
        classifier = stack.enter_context(Classifier.from_request(wanted, request.device))
        other = None
        if request.against is not None:
            other = stack.enter_context(_comparison_classifier(wanted, classifier.device, request.against))
            _check_same_classes(classifier, other, request.against)
        if classifier.why_cpu is not None:
            print_to_stderr(f"note: running on the CPU: {classifier.why_cpu}")
        data = _load_dataset(request, classifier, other)
        found = _classify_images(classifier, data.images)
        second = None if other is None else _classify_images(other, data.images)
        where = classifier.describe()
    names = classifier.classes
    if names is None and data.classes is not None and len(data.classes) == classifier.graph.class_count:
        names = data.classes
    report = build_document(where, data, names, found, second)
    if request.html is not None:
        text = build_html_page(report, data.images)
        with replace_atomically(request.html, overwrite=request.output.overwrite) as temporary:
            temporary.write_text(text, encoding="utf-8")
    publish_report(report, as_text, request.output)
    return 0


def _comparison_classifier(wanted: NetworkRequest, device: str, against: str) -> Classifier:
    """Return the classifier to compare with. wanted: of the first one. against: a precision, network or file."""
    if against not in PRECISIONS:
        other = replace(network_request(against, wanted.precision), sparse=wanted.sparse)
        if other.network is not None and not against.endswith(SUFFIX) and network_by_name(against) is None:
            what = f"--against: unknown network or precision '{against}'"
            raise UserError(f"{what}: {choices_hint(against, (*NETWORKS, *PRECISIONS))}, or a file")
        return Classifier.from_request(other, device)
    if device == "cpu":
        raise UserError(f"--against {against} is a precision of the GPU: name another network or weights file")
    return Classifier.from_request(replace(wanted, precision=against), device)


def _check_same_classes(one: Classifier, other: Classifier, against: str) -> None:
    """Raise UserError if the two classifiers differ in the number or the names of their classes."""
    if one.graph.class_count != other.graph.class_count or (
        one.classes and other.classes and one.classes != other.classes
    ):
        raise UserError(f"--against {against} has other classes: compare networks that tell the same classes apart")


def _load_dataset(request: EvaluateRequest, classifier: Classifier, other: Classifier | None) -> Dataset:
    """Return the requested images and labels. Raises UserError without labels, unless two networks are compared."""

    def check_size_and_labels(data: Dataset) -> None:
        if request.batch is not None and request.batch > len(data.images):
            raise UserError(f"--batch {request.batch} is more than the {len(data.images)} images of {data.source}")
        if data.labels is None and other is None:
            raise UserError(
                f"{data.source} has no labels to judge the answers by: name them with --labels FILE, or compare two "
                "networks with --against OTHER"
            )

    data, _ = load_images(request.images, classifier.graph, check_size_and_labels, None)
    check_size_and_labels(data)
    if other is not None:
        graph_for_images(other.graph, data)
    if data.labels is None:
        print_to_stderr(f"note: {data.source}, without labels: only changed answers are compared")
    labels = None if data.labels is None else data.labels[: request.batch]
    return replace(data, images=data.images[: request.batch], labels=labels)


def _classify_images(classifier: Classifier, images: np.ndarray) -> Answers:
    """Return the answers for images (N, C, H, W). Raises UserError if a probability is not finite."""
    parts = []
    with progress_bar(len(images), desc=classifier.graph.network.name, unit=" images", leave=False) as progress:
        for start in range(0, len(images), PER_CALL):
            labels = classifier(images[start : start + PER_CALL])
            with np.errstate(invalid="ignore"):  # of scores that are not finite; reported below
                parts.append((labels, classifier.probabilities))
            progress(len(labels))
    labels, probabilities = (np.concatenate(part) for part in zip(*parts, strict=True))
    lost = int((~np.isfinite(probabilities).all(axis=1)).sum())
    if lost:
        raise UserError(
            f"the scores of {lost} images are beyond the range of {classifier.precision}: "
            "choose a finer --precision, or mend the weights"
        )
    return Answers(_network_record(classifier), labels, probabilities)


def _network_record(classifier: Classifier) -> EvaluatedNetwork:
    network, weights = classifier.graph.network, classifier.weights
    return {
        "network": {"name": network.name, "input_shape": [*network.input_shape]},
        "weights": weights.json_record,
        "precision": classifier.precision,
    }
