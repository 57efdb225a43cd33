"""Draw a sweep as heat maps."""

from collections.abc import Sequence
from math import inf
from pathlib import Path

from app.drawing.files import save
from app.drawing.matrix import Times, heat_map
from app.lab.sweep.grid import Target

Field = tuple[str, str, Times]  # names of the parameters down and across, and the times by their values


def layer_field(target: Target) -> Field | None:
    """Choose the two parameters that matter most, with the others at their best; None if no parameter was varied.

    A parameter matters more the slower its worst value is than its best, with all others at their best.
    """
    varied: dict[str, float] = {}
    for name in target.points[0]["parameters"] if target.points else ():
        times = _fastest(target, "", name).values()
        if len(times) > 1:
            varied[name] = max(times) - min(times)
    names = sorted(varied, key=lambda name: -varied[name])[:2]
    if not names:
        return None
    down, across = names if len(names) == 2 else ("", *names)
    return down, across, _fastest(target, down, across)


def _fastest(target: Target, down: str, across: str) -> dict[tuple[int, int], float]:
    """Values of two parameters, 0 for "", → the least time over all values of the others."""
    best: dict[tuple[int, int], float] = {}
    for point in target.points:
        values = point["parameters"].get(down, 0), point["parameters"].get(across, 0)
        best[values] = min(best.get(values, inf), point["ms"])
    return best


def both_layers_field(targets: Sequence[Target]) -> Field | None:
    """Sum two layers' times over the one parameter of each, as in system 2; None for other sweeps."""
    if len(targets) != 2 or len(targets[0].row.tunables) != 1:
        return None
    (name,) = targets[0].row.tunables
    first, second = ({p["parameters"][name]: p["ms"] for p in target.points} for target in targets)
    if not first or not second:
        return None
    sums = {(a, b): first[a] + second[b] for a in first for b in second}
    return f"{targets[0].layer} {name}", f"{targets[1].layer} {name}", sums


def draw_layers(folder: Path, network: str, targets: Sequence[Target]) -> None:
    """Draw each layer, and two layers together where each has one parameter. Raises UserError."""
    row, images = targets[0].row, targets[0].images
    found = [(f" {target.layer}", f"_{target.layer}", layer_field(target)) for target in targets]
    found.append((", both layers", "", both_layers_field(targets)))
    for where, suffix, field in found:
        if field is not None:
            title = f"{row.operation} {row.name}, {network}{where}, {images:,} images"
            save(heat_map(title, *field), folder / f"sweep_{row.name}_{network}{suffix}_heat.svg")


def draw_pipeline(folder: Path, network: str, images: int, times: Times) -> None:
    """Draw end-to-end times by (chunk, streams), if there are any. Raises UserError."""
    if times:
        chart = heat_map(f"{network}, {images:,} images, end to end", "images a chunk", "streams", times)
        save(chart, folder / f"sweep_pipeline_{network}_heat.svg")
