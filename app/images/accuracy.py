"""Run ``main.py accuracy``: count the correct labels of each shipped network, beside those of earlier systems."""

from app.base.errors import UserError, print_to_stderr
from app.base.interrupts import exit_on_interrupt, progress_bar
from app.base.precision import SHORT
from app.commands.accuracy import AccuracyRequest
from app.cuda import device
from app.engine.opening import cpu_engine_class, open_engine
from app.network.definitions import NETWORKS, Network, is_listed_network
from app.network.graph import build_graph, find_network, require_weights, shipped_weights
from app.network.reference import compute_reference, load_reference, shipped_reference
from app.network.verdicts import COUNTED, compare_labels, correct_counts, judge_answers
from app.network.weights import Weights, load_weights
from app.planning.matching import Choices
from app.records.networks import Accuracy, NetworkAccuracy
from app.terminal.output import publish_report
from app.terminal.text import Column, paragraph, table
from data_tools.dataset import Dataset, load_fashion_mnist

# Network → number of first images → share correct in the report of the system it is from; k7's and mlp's give none.
REPORTED = {
    "lenet5": {"10000": 0.8722},
    "fa19": {"100": 0.76, "1000": 0.767, "10000": 0.7653},
    "minidnn86": {"100": 0.86, "1000": 0.886, "5000": 0.871, "10000": 0.8714},
}
LEGEND = "report: of the system's own report, other weights, and for lenet5 other images (handwritten digits)."


def accuracy(request: AccuracyRequest) -> int:
    """Classify the test images with the requested network or all. Return 1 if a check failed, otherwise 0."""
    entries = _networks_with_weights(request)
    with exit_on_interrupt():
        where, why_not = device.choose_device(request.device)
    if where == "cpu" and request.precision not in ("auto", "fp32"):
        raise UserError("--precision is for the GPU: leave it out on the CPU")
    if why_not is not None:
        print_to_stderr(f"note: running on the CPU: {why_not}")
    with device.translate_gpu_errors():
        data = load_fashion_mnist("test", request.data_dir)
        rows = [_measure_network_accuracy(network, weights, data, where, request) for network, weights in entries]
    if not any(row["correct"] for row in rows):
        raise UserError(f"no network ran: {rows[0]['verdict']}")
    if where == "cpu":
        by = f"{cpu_engine_class().library} on the CPU"
    else:
        card = device.describe_gpu()
        by = f"{card['name']} ({device.format_bus_address(card)})"
    document: Accuracy = {"schema": "lenet5-inference/accuracy/1", "device": by, "networks": rows}
    publish_report(document, _format_accuracy, request.output)
    return int(any(row["passed"] is False for row in rows))


def _networks_with_weights(request: AccuracyRequest) -> list[tuple[Network, Weights | None]]:
    """Return (network, weights) of each network to run; weights are None if none are shipped. Raises UserError."""
    if request.network is None and request.weights is None:
        return [(network, shipped_weights(network)) for network in NETWORKS.values()]
    network = None if request.network is None else find_network(request.network)
    weights = require_weights(str(request.network)) if request.weights is None else load_weights(request.weights)
    return [(network or weights.stored_network(), weights)]


def _measure_network_accuracy(
    network: Network, weights: Weights | None, data: Dataset, where: str, request: AccuracyRequest
) -> NetworkAccuracy:
    """Return counts of correct labels and a verdict, or why the network cannot run. where: ``cpu`` or ``cuda``."""
    row: NetworkAccuracy = {
        "network": network.name,
        "precision": None,
        "correct": {},
        "passed": None,
        "verdict": "no weights are shipped yet",
        "reported": REPORTED.get(network.name, {}) if is_listed_network(network) else {},
    }
    if weights is None:
        return row
    graph = build_graph(network, weights)
    shape = data.images.shape[1:]
    if network.input_shape != shape:
        raise UserError(f"network {network.name} reads {network.input_shape}, the test images are {shape}: use main.py")
    reference = shipped_reference(weights, network) if request.weights is None else load_reference(weights, network)
    source = "stored float64 reference"
    if reference is None:
        reference, source = compute_reference(graph, data.images), "computed float64 reference"
    if data.labels is None:
        raise ValueError("the test images have labels")
    try:
        engine = open_engine(graph, Choices(request.precision), device=where)
    except UserError as error:  # the network has no kernels for this precision
        if where == "cpu" or not (request.network is None and request.weights is None):
            raise
        return {**row, "verdict": str(error)}
    with engine, progress_bar(len(data.images), desc=network.name, unit="im", leave=False) as progress:
        labels, arithmetic = engine.run(data.images, progress=progress).labels, engine.arithmetic
    agreement = compare_labels(labels, reference, source, arithmetic)
    expected = weights.promised_correct_count(network, len(labels))
    found = judge_answers(labels, data.labels, expected, agreement, classes=graph.class_count)
    warning = found.answers.warning and f"WARNING: {found.answers.warning}"
    return {
        **row,
        "precision": SHORT[arithmetic],
        "correct": {str(count): correct for count, correct in correct_counts(labels, data.labels).items()},
        "passed": found.passed,
        "verdict": "; ".join(filter(None, (agreement.verdict, found.answers.verdict, warning))),
    }


def _format_accuracy(document: Accuracy, width: int) -> str:
    """Return a table of the networks: share of correct labels, the earlier system's if known, and the verdict."""
    counts = [str(count) for count in COUNTED]
    columns = [Column("network", left=True), Column("", left=True), *(Column(f"{count:,}") for count in COUNTED)]
    rows = []
    for row in document["networks"]:
        verdict = {True: "PASSED: ", False: "FAILED: ", None: ""}[row["passed"]] + row["verdict"]
        ours = {count: correct / int(count) for count, correct in row["correct"].items()}
        for name, run, shares in (row["network"], row["precision"] or "", ours), ("", "report", row["reported"]):
            if shares:
                cells = [f"{shares[count]:.2%}" if count in shares else "" for count in counts]
                rows.append([name, run, *cells])
            elif name:
                rows.append([name, "", verdict])
        if ours:
            rows.append(["", verdict])
    head = f"Correct among the first Fashion-MNIST test images, by {document['device']}"
    return "\n".join([*paragraph(head, width), *table(columns, rows, width), *paragraph(LEGEND, width)])
