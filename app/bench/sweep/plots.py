"""Draw a sweep as a heat map, and as a 3-D bar plot like that of system 2 for its tile widths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

from app.bench.sweep.grid import Target
from app.figures import figure_of, save

Times = Mapping[tuple[int, int], float]  # (value down, value across) → ms


@dataclass(frozen=True)
class Field:
    """Times over two parameters: their names, values, and ms[down][across], NaN where there is no time."""

    down: str
    across: str
    downs: tuple[int, ...]
    acrosses: tuple[int, ...]
    ms: tuple[tuple[float, ...], ...]


def field(down: str, across: str, times: Times) -> Field:
    """Arrange times by pairs of values in a full table."""
    downs = tuple(sorted({first for first, _ in times}))
    acrosses = tuple(sorted({second for _, second in times}))
    ms = tuple(tuple(times.get((first, second), nan) for second in acrosses) for first in downs)
    return Field(down, across, downs, acrosses, ms)


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
    return field(down, across, _fastest(target, down, across))


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
    return field(f"{targets[0].layer} {name}", f"{targets[1].layer} {name}", sums)


def draw_layers(folder: Path, network: str, targets: Sequence[Target]) -> None:
    """Draw each layer, and two layers together where each has one parameter."""
    row, images = targets[0].row, targets[0].images
    found = [(f" {target.layer}", f"_{target.layer}", layer_field(target)) for target in targets]
    found.append((", both layers", "", both_layers_field(targets)))
    for where, suffix, times in found:
        if times is not None:
            title = f"{row.operation} {row.name}, {network}{where}, {images:,} images"
            draw(folder, f"sweep_{row.name}_{network}{suffix}", title, times)


def draw_pipeline(folder: Path, network: str, images: int, times: Times) -> None:
    """Draw end-to-end times by (chunk, streams), if there are any."""
    if times:
        title, found = f"{network}, {images:,} images, end to end", field("images a chunk", "streams", times)
        draw(folder, f"sweep_pipeline_{network}", title, found)


def draw(folder: Path, name: str, title: str, found: Field) -> None:
    """Write ``NAME_heat.png`` and ``NAME_3d.png``. Raises UserError if they cannot be written."""
    save(_heat_map(title, found), folder / f"{name}_heat.png")
    save(_bars(title, found), folder / f"{name}_3d.png")


def _heat_map(title: str, found: Field) -> Any:
    figure, (axes,) = figure_of(max(6, 1.6 + 0.9 * len(found.acrosses)), 1.6 + 0.55 * len(found.downs))
    image = axes.imshow(found.ms, cmap="viridis_r", aspect="auto", origin="lower")
    low, high = image.get_clim()
    for at, row in enumerate(found.ms):
        for index, ms in enumerate(row):
            if ms == ms:  # skip NaN
                colour = "white" if ms > (low + high) / 2 else "black"  # the slow end of the scale is dark
                axes.text(index, at, f"{ms:.3g}", ha="center", va="center", color=colour, fontsize=8)
    _label(axes, title, found)
    figure.colorbar(image, label="ms")
    return figure


def _bars(title: str, found: Field) -> Any:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6))
    axes: Any = figure.add_subplot(projection="3d")
    bars = [(x, y, ms) for y, row in enumerate(found.ms) for x, ms in enumerate(row) if ms == ms]
    xs, ys, heights = zip(*bars, strict=True)
    fastest, slowest = min(heights), max(heights)
    shades = [0.15 + 0.7 * (slowest - ms) / ((slowest - fastest) or 1) for ms in heights]
    axes.bar3d([x - 0.4 for x in xs], [y - 0.4 for y in ys], 0, 0.8, 0.8, heights, color=colormaps["viridis"](shades))
    _label(axes, title, found)
    axes.set_zlabel("ms")
    axes.yaxis.labelpad = 14  # clear of the longest numbers
    return figure


def _label(axes: Any, title: str, found: Field) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(found.across)
    axes.set_ylabel(found.down)
    axes.set_xticks(range(len(found.acrosses)), [f"{value:,}" for value in found.acrosses])
    axes.set_yticks(range(len(found.downs)), [f"{value:,}" if found.down else "" for value in found.downs])
