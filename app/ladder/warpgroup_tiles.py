"""Draw products of warpgroups: operands that stay in shared memory, and filters of which half is skipped."""

from app.drawing.svg import Drawing

CELL, TOP, EIGHT = 14, 22, 8


def draw_shared_operands(kernel: int, stride: int, height: int, width: int, rows: int, warpgroups: int) -> Drawing:
    """Return a drawing of the operands of wgmma, which lie in shared memory: filters, and pixels at two taps.

    height, width: positions of the pixels that a warpgroup keeps. rows: of eight neighbouring pixels in a product.
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
    drawing.add_text_lines(0, TOP + 16 * CELL + 18, ["filters of one tap,", "shared memory"], "quiet")
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
    out = left + max(width * CELL, 280) + 60
    drawing.add_text(out, 12, f"sums: 64 maps × {rows * EIGHT} pixels", "head")
    drawing.add_rectangle(out, TOP, 120, 16 * CELL, "own", "sums, in the registers of a warpgroup's 128 threads")
    drawing.add_arrow(left + width * CELL, TOP + 8 * CELL, out, TOP + 8 * CELL)
    drawing.add_arrow(4 * CELL, TOP + 15 * CELL, out, TOP + 15 * CELL)
    drawing.add_text_lines(
        out,
        TOP + 16 * CELL + 18,
        [f"{warpgroups} warpgroups a block, each with its", "own pixels; all read the same filters"],
        "quiet",
    )
    return drawing
