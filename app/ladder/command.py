"""Run ``main.py ladder``: show every step in order, with its predicted and its measured time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.base.errors import UserError
from app.base.interrupts import exit_on_interrupt
from app.commands.ladder import LadderRequest
from app.cuda import device
from app.lab.bench.cases import SPARSE_FILTERS
from app.lab.document import heading_lines
from app.ladder.card import Card
from app.ladder.counting import PARTS
from app.ladder.lessons import LADDERS, Step, ladder_steps
from app.ladder.pages import check_site_folder, write_site
from app.ladder.playground import find_test_images, playground_page
from app.ladder.stored import find_stored_card, introduction_pages, load_stored_card, stored_kernels
from app.network.graph import network_graph
from app.records import kernels as records
from app.records.kernels import Ladder
from app.terminal.output import publish_report
from app.terminal.text import Column, format_factor, format_ms, paragraph, table

COMMAND = "python main.py ladder --network {} --pages DIR"
EXPLAINED = (
    "predicted: the step's counts of loads, bytes, multiply-adds and issue slots say how long the busiest part of the "
    "card needs; no kernel with these counts is faster. × before: times as fast as the step that it continues."
)
OF_LOOP = " (loop): the issue slots are those of the hottest loop alone, because no counter has counted the others."
COLUMNS = (
    *(Column("step", left=True), Column("as", left=True, optional=2), Column("continues", left=True, optional=1)),
    *(Column("predicted"), Column("measured"), Column("ratio"), Column("× before"), Column("bound by", left=True)),
)


def ladder(request: LadderRequest) -> int:
    """Measure the steps or read stored times; print them. Return 1 if a result is wrong, else 0. Raises UserError."""
    if request.pages is not None:
        check_site_folder(request.pages)
    no_gpu = device.why_no_gpu()
    with exit_on_interrupt():
        graph = network_graph(request.network)
    name = graph.network.name
    if no_gpu is None:
        card, notes = _measure_card(request, name), []
    else:
        try:
            card = load_stored_card(name)
        except UserError as error:
            raise UserError(f"ladder needs an NVIDIA GPU: {no_gpu}; {error}") from None
        taken = card.benches[name]["date"]
        notes = [f"no GPU ({no_gpu}): these figures are stored, measured on an {card.device['name']} at {taken}"]
        if request.batch != card.benches[name]["images"]:
            notes.append(f"--batch {request.batch} is for a GPU, without effect on stored figures")
    document = _ladder_document(card, name, notes)
    publish_report(document, as_text, request.output)
    if request.pages is not None:
        more = [*introduction_pages(), playground_page(find_test_images())]
        files = write_site(request.pages, card, COMMAND.format(name), more)
        if request.output.json != "-":
            print(f"\n{request.pages / 'index.html'}: {len(files)} files; open it in a browser")
    return int(any(row["wrong"] for one in document["tables"] for row in one["rows"]))


def _measure_card(request: LadderRequest, name: str) -> Card:
    with exit_on_interrupt():  # the import loads CuPy
        from app.ladder.measuring import measure_steps
    with device.translate_gpu_errors():
        card = device.describe_gpu()
        document = measure_steps(network_graph(request.network), request.batch, card)
    return Card({name: document}, stored_kernels(card["architecture"]), alike=find_stored_card(name, card["name"]))


def _ladder_document(card: Card, network: str, notes: Sequence[str]) -> Ladder:
    """Return the JSON document of ``main.py ladder``: the measurements, with a row for each step."""
    bench = card.benches[network]
    alone = replace(card, benches={network: bench})
    steps = [_step_document(alone, step) for operation in LADDERS for step in ladder_steps(operation)]
    timed = (row for table in bench["tables"] for row in table["rows"] if row["ms"] and row["note"] == SPARSE_FILTERS)
    sparse = dict.fromkeys(row["name"] for row in timed)
    return {
        "schema": "lenet5-inference/ladder/1",
        "network": network,
        "date": bench["date"],
        "device": bench["device"],
        "images": bench["images"],
        "settings": bench["settings"],
        "peaks": bench["peaks"],
        "tables": bench["tables"],
        "totals": bench["totals"],
        "steps": [row for row in steps if row["layers"] or row["reason"]],
        "notes": [*notes, *(f"{name} was timed {SPARSE_FILTERS}; no other time depends on weights" for name in sparse)],
    }


def _step_document(card: Card, step: Step) -> records.Step:
    """Return a step's predicted and measured times; a sum over layers is None if any layer of its kind has none."""
    (bench,) = card.benches.values()
    tables = [one for one in bench["tables"] if one["operation"] == step.row.operation and "+" not in one["item"]]
    layers = [layer for layer in card.layers(step) if layer.name in {one["item"] for one in tables}]
    rows = [row for one in tables for row in one["rows"] if (row["name"], row["dtype"]) == (step.row.name, step.dtype)]
    whole, times = len(layers) == len(tables) > 0, [layer.ms for layer in layers]
    longest = max(layers, key=lambda layer: layer.prediction.ms, default=None)
    return {
        "operation": step.row.operation,
        "step": step.row.step,
        "name": step.row.name,
        "since": step.row.since,
        "dtype": step.dtype,
        "idea": step.lesson.title,
        "layers": [
            {
                "item": one.name,
                "predicted_ms": one.prediction.ms,
                "bound": one.prediction.busiest_part,
                "slots": one.issue_slot_source,
                "ms": one.ms,
            }
            for one in layers
        ],
        "predicted_ms": sum(layer.prediction.ms for layer in layers) if whole else None,
        "ms": sum(filter(None, times)) if whole and all(times) else None,
        "bound": longest.prediction.busiest_part if longest else None,
        "reason": next((row["reason"] for row in rows if row["reason"]), ""),
    }


def as_text(document: Ladder, width: int) -> str:
    """Return the document as text: a heading, a table for each ladder, and the notes."""
    title = f"The ladder on {document['network']}, {document['images']:,} images"
    parts = [heading_lines(title, document, {"times": f"ms, {document['settings']['rule']}"}, width)]
    for operation, name in LADDERS.items():
        rows = [row for row in document["steps"] if row["operation"] == operation]
        if not rows:
            continue
        items = dict.fromkeys(layer["item"] for row in rows for layer in row["layers"])
        times = {row["name"]: row["ms"] for row in rows}
        of = f"{name.capitalize()}: {' + '.join(items)}"
        parts.append([*paragraph(of, width), *table(COLUMNS, (_step_cells(row, times) for row in rows), width)])
    of_loop = any(_counts_only_hottest_loop(row) for row in document["steps"] if row["ms"])
    parts.append(paragraph(EXPLAINED + OF_LOOP * of_loop, width))
    parts += [paragraph(f"note: {note}", width) for note in document["notes"]]
    return "\n\n".join("\n".join(lines) for lines in parts)


def _counts_only_hottest_loop(row: records.Step) -> bool:
    return any(layer["slots"] == "loop" for layer in row["layers"])


def _step_cells(row: records.Step, times: Mapping[str, float | None]) -> list[str]:
    ms, predicted, before = row["ms"], row["predicted_ms"], times.get(row["since"] or "")
    cells = [f"{row['step']:02} {row['name']}", row["dtype"], row["since"] or "", format_ms(predicted)]
    if ms is None:
        timed = [f"{layer['item']} alone: {format_ms(layer['ms'])}" for layer in row["layers"] if layer["ms"]]
        return [*cells, "–", "; ".join([*timed, row["reason"]] if row["reason"] else timed) or "not measured"]
    bound = PARTS[row["bound"] or ""].partition(" (")[0]
    if _counts_only_hottest_loop(row):
        bound += " (loop)"
    ratio = format_factor(ms / predicted) if predicted else ""
    return [*cells, format_ms(ms), ratio, format_factor(before / ms) if before else "", bound]
