"""Draw the operands of wgmma, which stay in shared memory, and sparse filters, of which it skips half."""

import numpy as np

from app.drawing.svg import Drawing
from app.kernels.fused.sparse_pair import kept_positions
from app.kernels.plain_problems import GROUP, KEPT

CELL, TOP, EIGHT = 14, 22, 8
# For each map in the drawing: which of 2 × 4 channels have a weight. All six pairs out of four occur.
SHOWN = np.array([[1, 1, 0, 0, 0, 1, 0, 1], [0, 1, 1, 0, 1, 0, 0, 1], [1, 0, 1, 0, 0, 0, 1, 1]])


def draw_shared_operands(kernel: int, stride: int, height: int, width: int, rows: int, warpgroups: int) -> Drawing:
    """Return a drawing of the operands of wgmma, which lie in shared memory: filters, and pixels at two taps.

    height, width: pixels of a warpgroup in shared memory. rows: of eight neighbouring pixels each, in one product.
    """
    down, right = min(1, kernel - 1), min(2, kernel - 1)
    high, across = ((count - 1) * stride + 1 for count in (rows, EIGHT))
    drawing = Drawing(
        f"In shared memory lie filters, of which a product takes 64 maps x 16 channels, and pixels, {height} x {width} "
        f"positions. The product of a tap reads {rows} rows of eight pixels; that of another tap reads as many from "
        f"another start address. Registers hold nothing but the sums, 64 maps x {rows * EIGHT} pixels."
    )
    drawing.add_text(0, 12, "A: 64 maps × 16 channels", "head")
    drawing.add_grid(0, TOP, 16, 4, CELL, "taps")
    drawing.add_text_lines(0, TOP + 16 * CELL + 18, "filters of one tap,", "shared memory", kind="quiet")
    left = 4 * CELL + 150
    drawing.add_text(left, 12, f"B: 16 channels of {height} × {width} pixels, shared memory", "head")
    drawing.add_grid(left, TOP, height, width, CELL, "shared")
    drawing.add_rectangle(left, TOP, across * CELL, high * CELL, "thread", "pixels that the first tap multiplies")
    drawing.add_rectangle(
        left + right * CELL,
        TOP + down * CELL,
        across * CELL,
        high * CELL,
        "neighbour",
        f"those of the tap in row {down}, column {right}: another start address",
    )
    out = left + max(width * CELL, 310) + 60
    drawing.add_text(out, 12, f"sums: 64 maps × {rows * EIGHT} pixels", "head")
    drawing.add_rectangle(out, TOP, 120, 16 * CELL, "own", "sums, in the registers of a warpgroup's 128 threads")
    drawing.add_arrow(left + width * CELL, TOP + 8 * CELL, out, TOP + 8 * CELL)
    drawing.add_arrow(4 * CELL, TOP + 15 * CELL, out, TOP + 15 * CELL)
    drawing.add_text_lines(
        out,
        TOP + 16 * CELL + 18,
        f"{warpgroups} warpgroups a block, each with its",
        "own pixels; all read the same filters",
        kind="quiet",
    )
    return drawing


def draw_sparse_operands(columns: int) -> Drawing:
    """Return a drawing of filters with two weights of every four, what is stored of them, and their metadata.

    columns: number of pixels that a product multiplies.
    """
    maps, channels = SHOWN.shape
    places = kept_positions(SHOWN.T).transpose(2, 0, 1)  # map, four, kept weight
    cell, row, apart = 26, 34, 10
    drawing = Drawing(
        f"Filters of {maps} maps at one tap: of every four channels two have a weight. A holds the {KEPT} kept weights "
        f"of each four, in their order. For each of them metadata holds two bits, its place among the four. A sparse "
        f"product multiplies 64 maps x 32 channels x {columns} pixels in the time of 16 channels."
    )

    def square_x(four: int, at: int, size: int) -> int:
        return four * (size * cell + apart) + at * cell

    stored = square_x(channels // GROUP, 0, GROUP) + 70
    bits = stored + square_x(channels // GROUP, 0, KEPT) + 40
    drawing.add_text(0, 12, f"a tap of {maps} maps, {channels} of 32 channels", "head")
    drawing.add_text(stored, 12, "A: kept weights", "head")
    drawing.add_text(bits, 12, "metadata: places, two bits", "head")
    for number in range(maps):
        y = TOP + number * row
        for four in range(channels // GROUP):
            for at in range(GROUP):
                kept = at in places[number, four]
                title = "a weight" if kept else ""
                drawing.add_rectangle(square_x(four, at, GROUP), y, cell, cell, "own" if kept else "plain", title)
            for at, place in enumerate(places[number, four]):
                x = square_x(four, at, KEPT)
                drawing.add_rectangle(stored + x, y, cell, cell, "own", "a weight")
                drawing.add_text(bits + x + cell / 2, y + 17, f"{place:02b}", "", "middle")
        drawing.add_arrow(stored - 60, y + cell / 2, stored - 8, y + cell / 2)
    foot = TOP + maps * row + 18
    drawing.add_text_lines(
        0,
        foot,
        f"one product: 64 maps × 32 channels × {columns} pixels, in the {columns // 2} clocks of 16 channels",
        f"A: 64 × 16 kept weights, {64 * 16 * 2:,} bytes; B: all 32 channels of the pixels, {64 * columns:,} bytes",
        "the metadata of a product: two registers of 32 bits in each group of four threads",
    )
    return drawing
