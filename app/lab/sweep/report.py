"""Report a sweep of a kernel's parameters as a JSON document, as text and as heat maps."""

from collections.abc import Iterator, Sequence
from math import inf
from operator import itemgetter
from pathlib import Path

from app.base.precision import SHORT
from app.commands.sweep import SweepRequest
from app.drawing.matrix import Times, draw_heat_map
from app.drawing.svg import save_chart
from app.kernels.problems import tuning_key
from app.lab.sweep.grid import L2, NOISE, Target, format_parameters
from app.main_job.statistics import describe_stopping_rule, speedup
from app.records.sweep import Sweep, SweptLayer
from app.terminal.text import INDENT, WIDTH, Column, format_ms, paragraph, table

SHOWN_POINTS = 20  # in the table of a layer
HeatMap = tuple[str, str, Times]  # names of the parameters down and across, and the times by their values
FUSED_HINT = "the main job runs layers fused with what follows them: --fused tunes those kernels"


def as_document(
    request: SweepRequest, targets: Sequence[Target], notes: Sequence[str], card: str, table: str | None
) -> Sweep:
    """Return the sweep as a JSON document. table: path of the tuning file with the best points, or None."""
    row = targets[0].row
    return {
        "schema": "lenet5-inference/sweep/1",
        "card": card,
        "network": request.network,
        "operation": row.operation,
        "variant": row.name,
        "precision": SHORT[targets[0].problem.dtype],
        "fused": request.fused,
        "images": request.batch,
        "finished": sum(target.finished for target in targets),
        "total": sum(len(target.grid) for target in targets),
        "tuning_table": table,
        "notes": [*notes, *([] if request.fused or row.operation == "pool" else [FUSED_HINT])],
        "layers": [_layer_document(target) for target in targets],
    }


def _layer_document(target: Target) -> SweptLayer:
    best, default, rival = target.best_point, target.default_point, target.rival
    return {
        "layer": target.layer,
        "problem": tuning_key(target.problem),
        "points": sorted(target.points, key=itemgetter("ms")),
        "default": target.default,
        "default_ms": default["ms"] if default else None,
        "best": best["parameters"] if best else None,
        "best_ms": best["ms"] if best else None,
        "gain": speedup(default["ms"], best["ms"]) if default and best else None,
        "auto": {
            "variant": rival[0].name,
            "parameters": rival[1],
            "ms": target.rival_result.ms_per_image * target.images if target.rival_result else None,
        }
        if rival
        else None,
        "skipped": target.skipped,
        "wrong": target.wrong,
    }


def as_text(report: Sweep, width: int = WIDTH) -> str:
    """Return the document as tables and paragraphs of at most ``width`` columns."""
    kind = "fused with what follows" if report["fused"] else "alone"
    head = (
        f"Sweep of {report['operation']} kernel {report['variant']}, network {report['network']}, "
        f"{report['images']:,} images, {report['precision']}, layers {kind}, on {report['card']}"
    )
    checked = f"every point checked, then timed on the card by CUDA events: {describe_stopping_rule(NOISE, L2)}"
    lines = [*paragraph(head, width), *paragraph(checked, width, INDENT)]
    for layer in report["layers"]:
        lines += [*paragraph(f"{layer['layer']} ({layer['problem']})", width), *_points_table(layer, width)]
        lines += [line for remark in _layer_remarks(layer) for line in paragraph(remark, width, INDENT, 2 * INDENT)]
    last = [f"note: {note}" for note in report["notes"]]
    if report["finished"] < report["total"]:
        last.append(f"interrupted after {report['finished']} of {report['total']} points")
    if report["tuning_table"]:
        last.append(f"the best points are in {report['tuning_table']}: 'auto' uses them from now on")
    return "\n".join([*lines, *(line for text in last for line in paragraph(text, width))])


def _points_table(layer: SweptLayer, width: int) -> list[str]:
    """Return a table of the fastest points, with the default point marked."""
    fastest = layer["best_ms"]
    if fastest is None:
        return []
    rows = [
        [
            *map(str, point["parameters"].values()),
            *map(format_ms, (point["ms"], point["spread_ms"])),
            *(f"{point['tflops']:.2f}", f"{point['ms'] / fastest:.3f}"),
            "default" if point["parameters"] == layer["default"] else "",
        ]
        for point in layer["points"][:SHOWN_POINTS]
    ]
    names = map(Column, layer["points"][0]["parameters"])
    times = Column("ms"), Column("± ms", optional=2), Column("TFLOP/s", optional=1), Column("× best")
    return table((*names, *times, Column("", left=True)), rows, width)


def _layer_remarks(layer: SweptLayer) -> Iterator[str]:
    """Yield remarks for below a layer's table: best point, choice of ``auto``, and skipped or wrong points."""
    if (more := len(layer["points"]) - SHOWN_POINTS) > 0:
        yield f"… and {more} slower ones (--json has all)"
    if layer["best"]:
        default = (
            f"{format_ms(layer['default_ms'])} ms, gain {layer['gain']:.3f} ×" if layer["gain"] else "not measured"
        )
        yield f"best: {format_parameters(layer['best'])}: {format_ms(layer['best_ms'])} ms; default: {default}"
    auto = layer["auto"]
    if auto and auto["ms"]:
        kernel = f"{auto['variant']} {format_parameters(auto['parameters'])}".strip()
        yield f"auto so far: {kernel}: {format_ms(auto['ms'])} ms"
    for skipped in layer["skipped"]:
        more_points = f" and {skipped['count'] - 1} more" if skipped["count"] > 1 else ""
        yield f"skipped {format_parameters(skipped['parameters'])}{more_points}: {skipped['reason']}"
    for wrong in layer["wrong"]:
        yield f"WRONG {format_parameters(wrong['parameters'])}: {wrong['reason']}"


def layer_heat_map(target: Target) -> HeatMap | None:
    """Return the heat map of the times over the two most important parameters; None if no parameter was varied.

    A parameter is more important if its best and its worst value differ by more ms. For each cell, all other parameters
    have their best values.
    """
    varied: dict[str, float] = {}
    for name in target.points[0]["parameters"] if target.points else ():
        times = _shortest_times(target, "", name).values()
        if len(times) > 1:
            varied[name] = max(times) - min(times)
    names = sorted(varied, key=lambda name: -varied[name])[:2]
    if not names:
        return None
    down, across = names if len(names) == 2 else ("", *names)
    return down, across, _shortest_times(target, down, across)


def _shortest_times(target: Target, down: str, across: str) -> dict[tuple[int, int], float]:
    """Return (value of ``down``, of ``across``) → least ms over all other parameters. "": no parameter, value 0."""
    best: dict[tuple[int, int], float] = {}
    for point in target.points:
        values = point["parameters"].get(down, 0), point["parameters"].get(across, 0)
        best[values] = min(best.get(values, inf), point["ms"])
    return best


def summed_heat_map(targets: Sequence[Target]) -> HeatMap | None:
    """Return the heat map of two layers' summed times over each one's only parameter; None if they are not two such."""
    if len(targets) != 2 or len(targets[0].row.tunables) != 1:
        return None
    (name,) = targets[0].row.tunables
    first, second = ({p["parameters"][name]: p["ms"] for p in target.points} for target in targets)
    if not first or not second:
        return None
    sums = {(a, b): first[a] + second[b] for a in first for b in second}
    return f"{targets[0].layer} {name}", f"{targets[1].layer} {name}", sums


def draw_heat_maps(folder: Path, network: str, targets: Sequence[Target]) -> None:
    """Draw a heat map of each layer, and of two layers together if each has one parameter. Raises UserError."""
    row, images = targets[0].row, targets[0].images
    found = [(f" {target.layer}", f"_{target.layer}", layer_heat_map(target)) for target in targets]
    found.append((", both layers", "", summed_heat_map(targets)))
    for where, suffix, heat_map in found:
        if heat_map is not None:
            title = f"{row.operation} {row.name}, {network}{where}, {images:,} images"
            save_chart(draw_heat_map(title, *heat_map), folder / f"sweep_{row.name}_{network}{suffix}_heat.svg")
