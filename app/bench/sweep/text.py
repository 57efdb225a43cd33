"""What a sweep reports: one document for programs (JSON), and the same as text."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from app.bench.stop import describe
from app.bench.sweep.grid import L2, NOISE, Point, Target, spell
from app.kernels.problems import key
from app.precision import SHORT
from app.text import WIDTH

SCHEMA = "lenet5-inference/sweep/1"
SHOWN_POINTS = 20
FUSED_HINT = "the main job runs layers fused with what follows them: --fused tunes those kernels"


def as_document(
    options: argparse.Namespace, targets: Sequence[Target], notes: Sequence[str], card: str, table: str | None
) -> dict[str, Any]:
    """The report as plain data. table: the file that the best points went to, None if there are none."""
    row = targets[0].row
    return {
        "schema": SCHEMA,
        "card": card,
        "network": options.network,
        "operation": row.operation,
        "variant": row.name,
        "precision": SHORT[targets[0].problem.dtype],
        "fused": options.fused,
        "images": options.batch,
        "finished": sum(target.finished for target in targets),
        "total": sum(len(target.grid) for target in targets),
        "tuning_table": table,
        "notes": [*notes, *([] if options.fused or row.operation == "pool" else [FUSED_HINT])],
        "layers": [_layer(target) for target in targets],
    }


def _layer(target: Target) -> dict[str, Any]:
    best, default, rival = target.best, target.default_point, target.rival
    ordered = sorted(target.points, key=lambda point: point.timing.median)
    return {
        "layer": target.layer,
        "problem": key(target.problem),
        "points": [_point(target, point) for point in ordered],
        "default": target.default,
        "default_ms": default.timing.median if default else None,
        "best": best.parameters if best else None,
        "best_ms": best.timing.median if best else None,
        "gain": default.timing.median / best.timing.median if default and best else None,
        "auto": {
            "variant": rival[0].name,
            "parameters": rival[1],
            "ms": target.rival_result.per_image * target.images if target.rival_result else None,
        }
        if rival
        else None,
        "skipped": [vars(skipped) for skipped in target.skipped],
        "wrong": [{"parameters": parameters, "reason": reason} for parameters, reason in target.wrong],
    }


def _point(target: Target, point: Point) -> dict[str, Any]:
    ms = point.timing.median
    return {
        "parameters": point.parameters,
        "ms": ms,
        "spread_ms": point.timing.spread,
        "tflops": target.problem.flops * target.images / ms / 1e9,
        "error_share": point.error,
    }


def as_text(report: Mapping[str, Any], width: int = WIDTH) -> str:
    """The document as aligned plain text."""
    kind = "fused with what follows" if report["fused"] else "alone"
    lines = [
        f"Sweep of {report['operation']} kernel {report['variant']}, network {report['network']}, "
        f"{report['images']:,} images, {report['precision']}, layers {kind}, on {report['card']}",
        f"  every point checked, then timed on the card by CUDA events: {describe(NOISE, L2)}",
    ]
    for layer in report["layers"]:
        lines += _layer_lines(layer)
    lines += [f"note: {note}" for note in report["notes"]]
    if report["finished"] < report["total"]:
        lines.append(f"interrupted after {report['finished']} of {report['total']} points")
    if report["tuning_table"]:
        lines.append(f"the best points are in {report['tuning_table']}: 'auto' goes by them from now on")
    return "\n".join(lines)


def _layer_lines(layer: Mapping[str, Any]) -> list[str]:
    lines = [f"{layer['layer']} ({layer['problem']})"]
    if layer["points"]:
        names = "".join(f"{name:>9}" for name in layer["points"][0]["parameters"])
        lines.append(f"  {names}{'ms':>11}{'± ms':>9}{'TFLOP/s':>9}{'× best':>8}")
    for point in layer["points"][:SHOWN_POINTS]:
        values = "".join(f"{value:>9}" for value in point["parameters"].values())
        spread = "" if point["spread_ms"] is None else f"{point['spread_ms']:.4f}"
        figures = f"{point['ms']:>11.4f}{spread:>9}{point['tflops']:>9.2f}"
        mark = "  default" if point["parameters"] == layer["default"] else ""
        lines.append(f"  {values}{figures}{point['ms'] / layer['best_ms']:>8.3f}{mark}")
    if len(layer["points"]) > SHOWN_POINTS:
        lines.append(f"  … and {len(layer['points']) - SHOWN_POINTS} slower ones (--json has all)")
    if layer["best"]:
        ms, gain = layer["default_ms"], layer["gain"]
        beside = f"{ms:.4f} ms, gain {gain:.3f} ×" if ms else "not measured"
        lines.append(f"  best: {spell(layer['best'])}: {layer['best_ms']:.4f} ms; default: {beside}")
    auto = layer["auto"]
    if auto and auto["ms"]:
        kernel = f"{auto['variant']} {spell(auto['parameters'])}".strip()
        lines.append(f"  auto so far: {kernel}: {auto['ms']:.4f} ms")
    for skipped in layer["skipped"]:
        count, where = skipped["count"], spell(skipped["parameters"])
        more = f" and {count - 1} more" if count > 1 else ""
        lines.append(f"  skipped {where}{more}: {skipped['reason']}")
    lines += [f"  WRONG {spell(wrong['parameters'])}: {wrong['reason']}" for wrong in layer["wrong"]]
    return lines
