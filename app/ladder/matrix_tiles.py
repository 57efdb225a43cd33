"""Draw matrix products: tiles, tensor-core fragments, passes over device memory, split sums, and rings of stages."""

from itertools import product as product_of

from app.drawing.svg import Drawing


def draw_matrix_product(
    rows: int,
    columns: int,
    depth: int,
    tall: int,
    wide: int,
    threads: int,
    where: str,
    rows_are: str,
    columns_are: str,
    rows_apart: int = 0,
    columns_apart: int = 0,
    together: int = 1,
) -> Drawing:
    """Return a drawing of tiles of two matrices, and of the elements of the product that one thread computes.

    A block's tiles: rows × depth and depth × columns. A thread has tall × wide elements, in runs of ``together`` rows
    or columns, whose starts are rows_apart or columns_apart apart (0: a single run). where: memory that holds the
    tiles. rows_are, columns_are: what rows and columns stand for, such as ``images``.
    """
    cell = max(min(260 / max(rows + depth, columns + depth), 12), 1.5)
    products = f"{tall * wide} multiply-add{'s' * (tall * wide > 1)}"
    drawing = Drawing(
        f"Tiles in {where}: {rows} {rows_are} x {depth} terms, and {depth} terms x {columns} {columns_are}. The marked "
        f"thread computes {tall} x {wide} elements of the product. For each term it reads {tall} + {wide} values and "
        f"does {products}."
    )
    left, top = depth * cell + 34, 44 + depth * cell
    drawing.add_text(left, 12, f"{depth} terms × {columns} {columns_are}", "head")
    drawing.add_text(left, 28, where, "quiet")
    drawing.add_grid(left, 36, depth, columns, cell, "shared")
    drawing.add_text(0, top + rows * cell + 18, f"{rows} {rows_are} × {depth} terms", "head")
    drawing.add_grid(0, top, rows, depth, cell, "taps")
    drawing.add_grid(left, top, rows, columns, cell)
    downs = _consecutive_runs(tall, rows // 3, rows_apart, together)
    alongs = _consecutive_runs(wide, columns // 3, columns_apart, together)
    for down, high in downs:
        y = top + down * cell
        drawing.add_rectangle(
            0, y, depth * cell, high * cell, "neighbour", f"what the marked thread reads for its {rows_are}"
        )
    for along, broad in alongs:
        x = left + along * cell
        drawing.add_rectangle(x, 36, broad * cell, depth * cell, "thread", f"what it reads for its {columns_are}")
    for (down, high), (along, broad) in product_of(downs, alongs):
        x, y = left + along * cell, top + down * cell
        drawing.add_rectangle(x, y, broad * cell, high * cell, "own", "the marked thread's outputs")
    (down, high), (along, broad) = downs[0], alongs[0]
    drawing.add_arrow(depth * cell, top + (down + high / 2) * cell, left + along * cell, top + (down + high / 2) * cell)
    middle = left + (along + broad / 2) * cell
    drawing.add_arrow(middle, 36 + depth * cell, middle, top + down * cell)
    drawing.add_text_lines(
        left + columns * cell + 16,
        top + 12,
        f"{threads:,} threads a block",
        f"a thread's outputs: {tall} × {wide}",
        f"a term: {tall} + {wide} values read,",
        products,
    )
    return drawing


def _consecutive_runs(count: int, about: int, apart: int, together: int) -> list[tuple[int, int]]:
    """Return (start, length) of each run of consecutive rows or columns that one thread computes.

    count: total number. about: preferred first start. apart: from start to start, 0 for one run. together: length.
    """
    together = together if apart else count
    first = about % apart if apart else about
    return [(number * apart + first // together * together, together) for number in range(count // together)]


def draw_mma_fragments(terms: int, down: int, across: int, rows_are: str, columns_are: str) -> Drawing:
    """Return a drawing of the operands of one mma, and the part that one thread holds.

    terms: in each sum. down, across: tiles that a warp computes. rows_are, columns_are: such as ``images``.
    """
    cell, lane_row, lane_column = 15, 1, 1
    drawing = Drawing(
        f"One mma: 16 rows x 8 words times 8 words x 8 columns, {terms} terms. The marked lane holds 4 words "
        f"of the first operand, 2 of the second and 4 sums. A warp computes {down} x {across} of "
        "these tiles."
    )
    left, top = 8 * cell + 40, 40 + 8 * cell
    drawing.add_text(left, 12, f"8 words × 8 {columns_are}", "head")
    drawing.add_grid(left, 22, 8, 8, cell, "shared")
    drawing.add_text(0, top + 16 * cell + 18, f"16 {rows_are} × 8 words", "head")
    drawing.add_grid(0, top, 16, 8, cell, "taps")
    drawing.add_grid(left, top, 16, 8, cell)
    for half in (0, 1):
        column = left + lane_row * cell
        drawing.add_rectangle(
            column, 22 + (lane_column + 4 * half) * cell, cell, cell, "thread", "lane 5's words of the top"
        )
        drawing.add_rectangle(
            left + 2 * lane_column * cell, top + (lane_row + 8 * half) * cell, 2 * cell, cell, "own", "its sums"
        )
        for quarter in (0, 1):
            x, y = (lane_column + 4 * quarter) * cell, top + (lane_row + 8 * half) * cell
            drawing.add_rectangle(x, y, cell, cell, "neighbour", "its words of the left")
    drawing.add_text_lines(
        left + 8 * cell + 18,
        top + 12,
        "lane 5 of 32: 4 + 2 words in, 4 sums",
        f"one instruction of a warp: {128 * terms:,} multiply-adds",
        f"a warp: {down} × {across} of these tiles",
        f"each word of the left serves {across} tiles,",
        f"each of the top {down}",
    )
    return drawing


def draw_kernel_passes(terms: int, columns: int, pixels: int = 0) -> Drawing:
    """Return a drawing of kernels that pass matrices to one another through device memory.

    terms, columns: size of the im2col matrix; 0 terms if there is none. pixels: values of an image.
    """
    boxes = ["im2col", "cuBLAS", "layout"] if terms else ["cuBLAS", "bias, activation"]
    drawing = Drawing(" then ".join(boxes) + ": each pass reads and writes its matrices in device memory.")
    between = [f"{terms:,} × {columns:,} values", "product"] if terms else ["product"]
    for number, name in enumerate(boxes):
        x = number * 230
        drawing.add_rectangle(x, 20, 110, 46, "own", "a pass: it reads and writes device memory")
        drawing.add_text(x + 55, 48, name, "head", "middle")
        if number < len(between):
            drawing.add_arrow(x + 112, 43, x + 228, 43)
            drawing.add_text(x + 170, 36, "memory", "quiet", "middle")
            drawing.add_text(x + 170, 84, between[number], "quiet", "middle")
    if terms:
        drawing.add_text_lines(0, 112, f"an image's {pixels:,} values become {terms * columns:,}")
    return drawing


def draw_split_sum(depth: int, parts: int, part: int) -> Drawing:
    """Return a drawing of a sum of ``depth`` terms, split among ``parts`` blocks that add up ``part`` terms each."""
    shown, width = min(parts, 12), 44
    drawing = Drawing(f"A sum of {depth} terms is cut into {parts} parts of {part}; a block adds up each part.")
    drawing.add_text(0, 12, f"{depth:,} terms of one sum", "head")
    for number in range(shown):
        drawing.add_rectangle(
            number * (width + 4), 22, width, 24, "shared", "a part of the sum, which one block adds up"
        )
        drawing.add_text(number * (width + 4) + width / 2, 39, f"block {number}", "small", "middle")
        drawing.add_arrow(number * (width + 4) + width / 2, 48, shown * (width + 4) / 2, 96)
    if parts > shown:
        drawing.add_text(shown * (width + 4) + 4, 39, f"… and {parts - shown} more")
    drawing.add_rectangle(shown * (width + 4) / 2 - 90, 98, 180, 26, "own", "the second kernel")
    drawing.add_text(shown * (width + 4) / 2, 115, f"adds {parts} parts in order", "", "middle")
    return drawing


def draw_stage_ring(stages: int, producers: int, consumers: int, tile: int, rows: int, terms: int) -> Drawing:
    """Return a drawing of threads that copy into a ring of stages in shared memory, ahead of threads that multiply.

    producers, consumers: threads that copy and multiply. tile, rows: outputs and images of a block. terms: of a stage.
    """
    drawing = Drawing(
        f"{producers} producer threads fill a ring of {stages} stages in shared memory; {consumers} "
        f"consumer threads multiply {tile} outputs x {rows} images from it by wgmma."
    )
    drawing.add_rectangle(0, 20, 130, 60, "neighbour", "threads that bring pieces of both matrices")
    drawing.add_text_lines(10, 46, f"{producers} producers", "copy ahead")
    for number in range(stages):
        drawing.add_rectangle(190 + number * 40, 25, 36, 50, "shared", "a stage of shared memory, with two barriers")
        drawing.add_text(208 + number * 40, 55, str(number + 1), "", "middle")
    right = 190 + stages * 40
    drawing.add_text(190, 14, f"ring of {stages} stages, {terms} terms each", "head")
    drawing.add_arrow(132, 50, 186, 50)
    drawing.add_arrow(right, 50, right + 50, 50)
    drawing.add_rectangle(right + 54, 20, 190, 60, "own", "threads that multiply, and hold the sums")
    drawing.add_text_lines(right + 64, 46, f"{consumers} consumers: wgmma,", f"{tile} outputs × {rows} images")
    return drawing
