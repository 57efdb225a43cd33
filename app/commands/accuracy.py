"""``main.py accuracy``: count correct answers of every shipped network, beside those in the old reports."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from app.bench import old_reports
from app.commands.options.accuracy import AccuracyRequest
from app.cuda import device
from app.errors import UserError, say
from app.interrupts import exit_on_interrupt
from app.network.accuracy import COUNTED, agree, correct_counts, judge
from app.network.definitions import NETWORKS, Network, is_listed
from app.network.generated import required_weights, shipped_weights
from app.network.graph import Graph, build, find_network
from app.network.reference import compute_reference, load_reference, shipped_reference
from app.network.weights import Weights, load_weights
from app.planning import tuning
from app.planning.matching import Choices
from app.planning.plan import ExecutionPlan, plan
from app.precision import SHORT
from app.report import publish
from app.runtime.cpu_session import progress_bar
from app.runtime.onnx_session import cpu_engine, cpu_session
from app.runtime.request import DEFAULT_STREAMS
from app.text import Column, paragraph, table
from data_tools.dataset import Dataset, load_fashion_mnist

SCHEMA = "lenet5-inference/accuracy/1"
LEGEND = "report: of the system's own report, other weights, and for lenet5 other images (handwritten digits)."


def accuracy(request: AccuracyRequest) -> int:
    """Classify the test images with every network, or the one asked for. Returns 1 if a check failed, else 0.

    Raises UserError.
    """
    entries = _entries(request)
    with exit_on_interrupt():
        where, why_not = device.choose(request.device)
    if where == "cpu" and request.precision not in ("auto", "fp32"):
        raise UserError("--precision is for the GPU: leave it out on the CPU")
    if why_not is not None:
        say(f"note: running on the CPU: {why_not}")
    reported = old_reports.load()["accuracy"]  # system → number of first images → share correct in its report
    with device.gpu_errors():
        data = load_fashion_mnist("test", request.data_dir)
        rows = [
            _row(network, weights, data, where, request)
            | {"reported": reported.get(network.name, {}) if is_listed(network) else {}}
            for network, weights in entries
        ]
    if not any(row["correct"] for row in rows):
        raise UserError(f"no network ran: {rows[0]['verdict']}")
    by = f"{cpu_engine().engine} on the CPU" if where == "cpu" else _card()
    document = {"schema": SCHEMA, "device": by, "networks": rows}
    publish(document, _text, request.output)
    return int(any(row["passed"] is False for row in rows))


def _card() -> str:
    card = device.describe_gpu()
    return f"{card['name']} ({device.place(card)})"


def _entries(request: AccuracyRequest) -> list[tuple[Network, Weights | None]]:
    """Return the networks to run, with their weights; None if none are shipped. Raises UserError."""
    if request.network is None and request.weights is None:
        return [(network, shipped_weights(network)) for network in NETWORKS.values()]
    network = None if request.network is None else find_network(request.network)
    weights = required_weights(str(request.network)) if request.weights is None else load_weights(request.weights)
    return [(network or weights.own_network(), weights)]


def _row(
    network: Network, weights: Weights | None, data: Dataset, where: str, request: AccuracyRequest
) -> dict[str, Any]:
    """Return one network's entry in the document. If it alone cannot run, the entry has no counts but the reason."""
    row: dict[str, Any] = {"network": network.name, "precision": None, "correct": {}, "passed": None}
    if weights is None:
        return row | {"verdict": "no weights are shipped yet"}
    graph = build(network, weights)
    shape = data.images.shape[1:]
    if network.input_shape != shape:
        raise UserError(f"network {network.name} reads {network.input_shape}, the test images are {shape}: use main.py")
    reference = shipped_reference(weights, network) if request.weights is None else load_reference(weights, network)
    source = "stored float64 reference"
    if reference is None:
        reference, source = compute_reference(graph, data.images), "computed float64 reference"
    if data.labels is None:
        raise ValueError("the test images have labels")
    if where == "cpu":
        labels, arithmetic = _on_cpu(graph, data.images), "float32"
    else:
        card = device.describe_gpu()
        try:
            execution = plan(graph, card["architecture"], Choices(request.precision, tuning=tuning.load(card["name"])))
        except UserError as error:  # the network has no kernels for this precision
            if not (request.network is None and request.weights is None):
                raise
            return row | {"verdict": str(error)}
        labels, arithmetic = _on_gpu(execution, data.images), execution.arithmetic
    agreement = agree(labels, reference, source, arithmetic)
    expected = weights.promised(network, len(labels))
    found = judge(labels, data.labels, expected, agreement, classes=graph.classes)
    warning = found.answers.warning and f"WARNING: {found.answers.warning}"
    return row | {
        "precision": SHORT[arithmetic],
        "correct": {str(count): correct for count, correct in correct_counts(labels, data.labels).items()},
        "passed": found.passed,
        "verdict": "; ".join(filter(None, (agreement.verdict, found.answers.verdict, warning))),
    }


def _on_cpu(graph: Graph, images: np.ndarray) -> np.ndarray:
    """Labels (N,)."""
    labels = np.empty(len(images), np.uint8)
    with progress_bar(len(images), desc=graph.network.name, unit="im", leave=False) as progress:
        cpu_session(graph).run(images, labels, progress)
    return labels


def _on_gpu(execution: ExecutionPlan, images: np.ndarray) -> np.ndarray:
    """Labels (N,)."""
    from app.runtime.session import Session, default_chunk

    with Session(execution, chunk=default_chunk(len(images)), streams=DEFAULT_STREAMS) as session:
        outputs = session.outputs(len(images))
        session.run(images, outputs)
        labels: np.ndarray = outputs.labels.copy()
        return labels


def _text(document: Mapping[str, Any], width: int) -> str:
    """Format each network's counts, its report's counts if any, and the check's verdict."""
    counts = [str(count) for count in COUNTED]
    columns = [Column("network", left=True), Column("", left=True), *(Column(f"{count:,}") for count in COUNTED)]
    rows = []
    for row in document["networks"]:
        verdict = {True: "PASSED: ", False: "FAILED: ", None: ""}[row["passed"]] + row["verdict"]
        ours = {count: correct / int(count) for count, correct in row["correct"].items()}
        for name, run, shares in (row["network"], row["precision"], ours), ("", "report", row["reported"]):
            if shares:
                cells = [f"{shares[count]:.2%}" if count in shares else "" for count in counts]
                rows.append([name, run, *cells])
            elif name:
                rows.append([name, "", verdict])
        if ours:
            rows.append(["", verdict])
    head = f"Correct among the first Fashion-MNIST test images, by {document['device']}"
    return "\n".join([*paragraph(head, width), *table(columns, rows, width), *paragraph(LEGEND, width)])
