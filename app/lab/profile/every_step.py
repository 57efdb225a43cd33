"""Count hardware events of every ladder step, layer by layer (``main.py profile --every-step``)."""

from collections.abc import Iterator, Mapping
from typing import cast

from tqdm import tqdm

from app.base.errors import UserError
from app.base.precision import BY_DTYPE
from app.cuda import device
from app.kernels import registry
from app.kernels.variant import Variant, ceil_div
from app.lab.document import describe_card, utc_date
from app.lab.profile import counters
from app.lab.profile.counters import COUNTERS, counts_by_layer
from app.network.graph import Graph
from app.planning import tuning
from app.planning.matching import Choices
from app.planning.plan import plan
from app.records.parts import Card
from app.records.profile import Counters, StepRow
from app.terminal.text import WIDTH, Column, fields, paragraph, table

OPTIONS = {"conv": "conv", "gemm": "fc"}  # operation → the option that names its kernels
SHOWN = ("issue", "occupancy", "SM", "L1", "L2", "DRAM", "tensor")


def count_step_events(graph: Graph, name: str, batch: int, selected: str) -> Counters:
    """Run ncu on every step of the multiplying operations, on each layer that the step can compute. Needs a GPU.

    name: of the network, or its file. batch: number of images. selected: the card, as ``--device`` names it. If nothing
    was counted, the document's ``note`` gives the reason.
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
        chosen = Choices(BY_DTYPE[dtype].name, fuse=False, kernels={row.operation: row}, tuning=known)
        try:
            launched = [*launched_functions(graph, card["architecture"], chosen, row, batch)]
        except UserError:
            continue  # the step does not serve this network, or not on this card
        text, note = counters.run_ncu(
            main_arguments(name, row, chosen.precision, batch, selected),
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


def launched_functions(graph: Graph, arch: str, chosen: Choices, row: Variant, batch: int) -> Iterator[tuple[str, str]]:
    """Yield layer and function name of each launch of this variant for one batch, in order. Raises UserError."""
    for node in plan(graph, arch, chosen).nodes:
        if node.variant is row:
            config = row.config(node.problem, node.settings)
            pieces = ceil_div(batch, config.images_at_a_time) if config.images_at_a_time else 1
            yield from [(node.head.name, launch.entry or row.entry) for launch in config.launches] * pieces


def main_arguments(network: str, row: Variant, precision: str, batch: int, selected: str) -> list[str]:
    """Return arguments of ``main.py`` that run one batch in one piece, layer by layer, with this kernel."""
    given = {
        "batch": batch,
        "chunk": batch,
        "streams": 1,
        "network": network,
        "precision": precision,
        OPTIONS[row.operation]: row.name,
        "device": selected,
    }
    return ["profile", *(f"--{name}={value}" for name, value in given.items()), "--no-fuse"]


def as_text(document: Counters, width: int = WIDTH) -> str:
    """Return a line for each step and layer, in percent, or the reason why there are none."""
    head = fields([("card", describe_card(document["device"])), ("network", document["network"])], width)
    columns = [Column(name, left=True) for name in ("kernel", "layer")] + [Column(f"{name} %") for name in SHOWN]
    rows = []
    for row in document["rows"]:
        counts = cast(Mapping[str, float | None], row["counts"])
        shares = ["–" if counts[name] is None else f"{counts[name]:.1f}" for name in SHOWN]
        rows.append([f"{row['operation']} {row['name']}", row["layer"], *shares])
    notes = paragraph(document["note"], width) if document["note"] else []
    return "\n".join([*head, "", *(table(columns, rows, width) if rows else []), *notes])
