"""Draw convolutions in which a thread computes one or more pixels: the inputs that it reads, and its outputs."""

from collections.abc import Sequence

from app.drawing.svg import Drawing
from app.kernels.conv.rows.toom_cook import toom_cook_matrices
from app.ladder.formulas import WARP

GRID_SIDE = 210  # pixels of the longer side of a grid
FOOT = 26


def _draw_first_warp(drawing: Drawing, x: float, rows: int, columns: int, cell: float) -> None:
    """Mark the cells of the first 32 threads in a grid at ``x``, counted row by row. cell: a cell's side in pixels."""
    left = WARP
    for row in range(rows):
        taken = min(left, columns)
        if taken <= 0:
            break
        drawing.add_rectangle(x, 22 + row * cell, taken * cell, cell, "warp", "the outputs of a warp's 32 threads")
        left -= taken


def draw_global_window(rows: int, columns: int, kernel: int, stride: int, threads: int, taps: str) -> Drawing:
    """Return a drawing of rows × columns outputs, each by a thread that reads its window from global memory.

    kernel: window's side. threads: of a block. taps: the memory that the filter is read from.
    """
    high, wide = (rows - 1) * stride + kernel, (columns - 1) * stride + kernel
    drawing = Drawing(
        f"Output map of {rows} x {columns} pixels, one thread each, {threads} threads a block. The marked "
        f"thread reads a window of {kernel} x {kernel} pixels of each input channel; its neighbour's window overlaps "
        f"it. Filter taps come from {taps}, one for the whole warp."
    )
    heads = f"input channel {high} × {wide}, global memory", f"output map {rows} × {columns}"
    tap_notes = f"{kernel} × {kernel} taps of one filter: {taps}", "one value serves all 32 threads of a warp"
    return _draw_windows(drawing, rows, columns, kernel, stride, heads, "plain", tap_notes)


def draw_shared_tile(tile: int, kernel: int, stride: int, taps: str) -> Drawing:
    """Return a drawing of a block of tile × tile outputs; its inputs lie in shared memory, its filter in ``taps``."""
    side = (tile - 1) * stride + kernel
    drawing = Drawing(
        f"A block of {tile} x {tile} threads copies {side} x {side} pixels of one channel to shared memory. A thread "
        f"reads its {kernel} x {kernel} window there. Filter taps come from {taps}."
    )
    heads = f"input tile {side} × {side}, shared memory", f"outputs of the block {tile} × {tile}"
    copied = f"{side**2:,} pixels for {tile**2:,} threads: {side**2 / tile**2:.2f} copied by each"
    tap_notes = f"{kernel} × {kernel} taps: {taps}", copied
    return _draw_windows(drawing, tile, tile, kernel, stride, heads, "shared", tap_notes)


def _draw_windows(
    drawing: Drawing,
    rows: int,
    columns: int,
    kernel: int,
    stride: int,
    heads: tuple[str, str],
    kind: str,
    tap_notes: Sequence[str],
) -> Drawing:
    """Add the inputs of two neighbouring threads, their outputs, and the taps to the drawing, and return it.

    heads: titles of input and outputs. kind: CSS class of the input's cells. tap_notes: lines of text below the taps.
    """
    high, wide = (rows - 1) * stride + kernel, (columns - 1) * stride + kernel
    cell = max(min(GRID_SIDE / max(high, wide), 18), 1.5)
    drawing.add_text(0, 12, heads[0], "head")
    drawing.add_grid(0, 22, high, wide, cell, kind)
    if kind == "shared":
        drawing.add_rectangle(0, 22, columns * stride * cell, rows * stride * cell, "core", "pixels under the outputs")
    at_row, at_column, side = min(1, rows - 1), min(2, columns - 1), kernel * cell
    x, y = at_column * stride * cell, 22 + at_row * stride * cell
    drawing.add_rectangle(x, y, side, side, "thread", "what the marked thread reads")
    drawing.add_rectangle(x + stride * cell, y, side, side, "neighbour", "what its neighbour reads")
    out = max(wide * cell, 190) + 70
    drawing.add_text(out, 12, heads[1], "head")
    drawing.add_grid(out, 22, rows, columns, cell)
    _draw_first_warp(drawing, out, rows, columns, cell)
    drawing.add_rectangle(
        out + at_column * cell, 22 + at_row * cell, cell, cell, "thread", "the marked thread's output"
    )
    drawing.add_arrow(x + side, y + side / 2, out + at_column * cell, 22 + (at_row + 0.5) * cell)
    foot = 22 + high * cell + FOOT
    drawing.add_grid(0, foot, kernel, kernel, min(cell, 10), "taps")
    drawing.add_text_lines(kernel * min(cell, 10) + 12, foot + 12, *tap_notes)
    return drawing


def draw_register_patch(maps: int, rows: int, columns: int, kernel: int, stride: int, threads: int) -> Drawing:
    """Return a drawing of a thread that reads input rows once for rows × columns pixels in each of ``maps`` maps."""
    high, wide = (rows - 1) * stride + kernel, (columns - 1) * stride + kernel
    cell = 16
    drawing = Drawing(
        f"A thread computes {rows} x {columns} pixels in {maps} maps. It reads a row of {wide} input values once and "
        f"uses it for {kernel} taps: {rows} x {wide} values and {kernel} x {maps} taps make "
        f"{rows * columns * kernel * maps} multiply-adds."
    )
    drawing.add_text(0, 12, f"input under the patch, {high} × {wide}, shared memory", "head")
    drawing.add_grid(0, 22, high, wide, cell, "shared")
    drawing.add_rectangle(
        0, 22, wide * cell, rows * cell, "thread", "values of one filter row, read at once into registers"
    )
    drawing.add_rectangle(0, 22, columns * cell, rows * cell, "neighbour", "those that the row's first tap multiplies")
    out = max(wide * cell, 300) + 60
    drawing.add_text(out, 12, f"{rows} × {columns} pixels in {maps} maps, registers", "head")
    for depth in range(min(maps, 4)):
        drawing.add_grid(out + 10 * depth, 22 + 10 * depth, rows, columns, cell, "own")
    drawing.keys["own"] = [f"the thread's sums, {min(maps, 4)} of {maps} maps shown"]
    foot = 22 + max(high, rows) * cell + FOOT + 14
    drawing.add_grid(0, foot, kernel, kernel, 10, "taps")
    drawing.add_rectangle(0, foot, kernel * 10, 10, "thread", "taps that one row of values serves")
    reads, products = rows * wide + kernel * maps, rows * columns * kernel * maps
    drawing.add_text_lines(
        kernel * 10 + 12,
        foot + 12,
        f"a row of taps: {rows} × {wide} values + {kernel} × {maps} taps = {reads} read",
        f"{products} multiply-adds, {products / reads:.1f} for each value read",
        f"{threads:,} threads a block",
    )
    return drawing


def draw_toom_cook(kernel: int, maps: int, rows: int, threads: int) -> Drawing:
    """Return a drawing of a Toom-Cook convolution: each thread has one point, ``maps`` maps and ``rows`` rows."""
    count, cell = kernel + 1, 22
    to_values, _, to_outputs = toom_cook_matrices(kernel)
    drawing = Drawing(
        f"A run of {count} input pixels becomes {count} values, one for each point. A row of {kernel} taps has become "
        f"{count} values too. A thread multiplies at one point, for {maps} maps and {rows} rows of pixels. {count} "
        f"sums of {count} threads become two neighbouring outputs, which take {2 * kernel} multiplications otherwise."
    )
    columns = (
        (0, f"{count} pixels", "plain", "a run of pixels, from global memory"),
        (150, f"{count} values", "shared", "sums of them, one for each point, in shared memory"),
        (300, f"{count} sums", "thread", "sums over channels and filter rows, each of a thread of its own"),
    )
    for x, words, kind, title in columns:
        drawing.add_text(x, 12, words, "head")
        for number in range(count):
            drawing.add_rectangle(x, 22 + number * (cell + 4), cell, cell, kind, title)
    middles = [33 + number * (cell + 4) for number in range(count)]
    for number, y in enumerate(middles):
        for pixel, factor in enumerate(to_values[number]):
            if factor:
                drawing.add_arrow(cell + 4, middles[pixel], 146, y)
        drawing.add_arrow(154 + cell, y, 296, y)
        drawing.add_text(232, y - 4, "× filter", "small", "middle")
        for place, factors in enumerate(to_outputs):
            if factors[number]:
                drawing.add_arrow(304 + cell, y, 440, middles[count // 2 - 1 + place])
    drawing.add_text(446, 12, "2 outputs", "head")
    for number in (0, 1):
        top = 22 + (count // 2 - 1 + number) * (cell + 4)
        drawing.add_rectangle(
            446, top, cell, cell, "own", "two neighbouring outputs of a row, each a sum of those sums"
        )
    foot = 22 + count * (cell + 4) + FOOT
    drawing.add_text_lines(
        0,
        foot,
        f"{count} multiplications for two outputs, instead of {2 * kernel}",
        f"a thread: one point, {maps} maps, a column of {rows} rows; {threads:,} threads a block",
    )
    return drawing
