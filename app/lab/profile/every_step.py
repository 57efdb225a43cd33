"""Count hardware events of every kernel of the ladder on each layer, by Nsight Compute (``ncu``)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from tqdm import tqdm

from app.base.errors import UserError
from app.base.precision import BY_DTYPE
from app.cuda import device
from app.kernels import registry
from app.kernels.variant import Variant, ceil_div
from app.lab.document import describe_card, utc_date
from app.lab.profile.counters import COUNTERS, parse_ncu_launches, parse_number, run_ncu
from app.network.graph import Graph
from app.planning import tuning
from app.planning.matching import Choices
from app.planning.plan import plan
from app.records.parts import Card
from app.records.profile import Counters, StepRow
from app.terminal.text import WIDTH, Column, fields, paragraph, table


def counts_by_layer(text: str, layers: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the counts in ncu's output ``text`` by layer; {} unless its table has a row for each launch.

    layers: the layer of each launch. Each value is {"launches": number of the layer's launches, "counts": counter →
    number}. Events are summed over the launches; a percentage is that of the launch with the most instructions. A
    number is None if the tool gave none.
    """
    rows = parse_ncu_launches(text)
    if len(rows) != len(layers):
        return {}
    found = {}
    for layer in dict.fromkeys(layers):
        launches = [row for row, name in zip(rows, layers, strict=True) if name == layer]
        instructions = COUNTERS["instructions"].metric
        largest = max(launches, key=lambda row: parse_number(row.get(instructions, "")) or 0)
        counts = {
            name: _metric_value([largest] if counter.unit == "%" else launches, counter.metric)
            for name, counter in COUNTERS.items()
        }
        found[layer] = {"launches": len(launches), "counts": counts}
    return found


def _metric_value(rows: Sequence[Mapping[str, str]], metric: str) -> float | None:
    values = [parse_number(row.get(metric, "")) for row in rows]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


OPTIONS = {"conv": "conv", "gemm": "fc"}  # operation → the option that names its kernels
SHOWN = ("issue", "occupancy", "SM", "L1", "L2", "DRAM", "tensor")


def count_step_events(graph: Graph, name: str, batch: int, selected: str) -> Counters:
    """Run ncu on every kernel of the ladders, on each layer that it can compute; return the counts. Needs a GPU.

    A kernel for 2:4 sparse filters runs only if the network's shipped weights are sparse. name: of the network, or its
    file. batch: number of images. selected: the GPU, as ``--device`` names it. The document's ``note`` is the reason if
    nothing was counted.
    """
    card = device.describe_gpu()
    known = tuning.load(card["name"])
    rows_of_ladders = (row for operation in OPTIONS for row in registry.variants(operation) if row.taught)
    steps = [row for row in rows_of_ladders if not row.needs_cublas]
    rows: list[StepRow] = []
    note: str | None = None
    for row in (bar := tqdm(steps, unit=" steps", disable=None)):
        bar.set_postfix_str(row.name)
        dtype = "float32" if "float32" in row.dtypes else row.dtypes[0]
        alone = Choices(BY_DTYPE[dtype].name, fuse=False, tuning=known)
        served = [*supported_layers(graph, card["architecture"], alone, row)]
        if not served:
            continue  # the step does not serve this network, or not on this card
        chosen = replace(alone, kernels=dict.fromkeys(served, row))
        launched = [*launched_functions(graph, card["architecture"], chosen, row, batch)]
        text, note = run_ncu(
            profile_arguments(name, row, served, chosen.precision, batch, selected),
            [entry for _, entry in launched],
            [counter.metric for counter in COUNTERS.values()],
        )
        if note is not None:
            break  # other steps would fail the same way
        about = {"operation": row.operation, "name": row.name, "dtype": dtype, "images": batch}
        found = counts_by_layer(text, [layer for layer, _ in launched])
        rows += [cast(StepRow, {**about, "layer": layer, **values}) for layer, values in found.items()]
    return {
        "schema": "lenet5-inference/counters/1",
        "date": utc_date(),
        "device": cast(Card, card),
        "network": graph.network.name,
        "rows": rows,
        "note": note,
    }


def supported_layers(graph: Graph, arch: str, choices: Choices, row: Variant) -> Iterator[str]:
    """Yield the names of the layers that the variant ``row`` can compute."""
    for layer in (step.layer for step in graph.steps if step.layer.operation == row.operation):
        try:
            plan(graph, arch, replace(choices, kernels={layer.name: row}))
        except UserError:
            continue
        yield layer.name


def launched_functions(graph: Graph, arch: str, chosen: Choices, row: Variant, batch: int) -> Iterator[tuple[str, str]]:
    """Yield (layer, kernel function) of each launch of the kernel ``row`` in a batch. Raises UserError if none fits."""
    for node in plan(graph, arch, chosen).nodes:
        if node.variant is row:
            config = row.launch_config(node.problem, node.settings)
            pieces = ceil_div(batch, config.images_at_a_time) if config.images_at_a_time else 1
            yield from [(node.head.name, x.entry or row.entry) for x in config.launches if x.grid(batch)[0]] * pieces


def profile_arguments(
    network: str, row: Variant, layers: Sequence[str], precision: str, batch: int, selected: str
) -> list[str]:
    """Return ``main.py`` arguments to profile one batch in one chunk, with ``row`` for ``layers`` and nothing fused."""
    given = {
        "batch": batch,
        "chunk": batch,
        "streams": 1,
        "network": network,
        "precision": precision,
        OPTIONS[row.operation]: ",".join(f"{layer}={row.name}" for layer in layers),
        "device": selected,
    }
    return ["profile", *(f"--{name}={value}" for name, value in given.items()), "--no-fuse"]


def as_text(document: Counters, width: int = WIDTH) -> str:
    """Return the document as text: a line of hardware counters in percent for each step and layer.

    If the counters could not be read, the text gives the reason.
    """
    head = fields([("card", describe_card(document["device"])), ("network", document["network"])], width)
    columns = [Column(name, left=True) for name in ("kernel", "layer")] + [Column(f"{name} %") for name in SHOWN]
    rows = []
    for row in document["rows"]:
        counts = cast(Mapping[str, float | None], row["counts"])
        shares = ["–" if counts[name] is None else f"{counts[name]:.1f}" for name in SHOWN]
        rows.append([f"{row['operation']} {row['name']}", row["layer"], *shares])
    notes = paragraph(document["note"], width) if document["note"] else []
    return "\n".join([*head, "", *(table(columns, rows, width) if rows else []), *notes])
