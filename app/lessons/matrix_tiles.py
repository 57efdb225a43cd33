"""Draw products of matrices: tiles, fragments of tensor cores, passes, parts of a sum, rings of stages."""

from app.lessons.drawing import Drawing, Sizes


def product(sizes: Sizes) -> Drawing:
    """Tiles of two matrices; a thread computes some elements of the product."""
    rows, columns, depth, tall, wide = (sizes[name] for name in ("rows", "columns", "depth", "tall", "wide"))
    words = sizes.words
    where, rows_are, columns_are = words["where"], words["rows_are"], words["columns_are"]
    cell = max(min(260 / max(rows + depth, columns + depth), 12), 1.5)
    products = f"{tall * wide} multiply-add{'s' * (tall * wide > 1)}"
    drawing = Drawing(
        f"Tiles in {where}: {rows} {rows_are} x {depth} terms, and {depth} terms x {columns} {columns_are}. The marked "
        f"thread computes {tall} x {wide} elements of the product. For each term it reads {tall} + {wide} values and "
        f"does {products}."
    )
    left, top = depth * cell + 34, 44 + depth * cell
    drawing.text(left, 12, f"{depth} terms × {columns} {columns_are}", "head")
    drawing.text(left, 28, where, "quiet")
    drawing.cells(left, 36, depth, columns, cell, "shared")
    drawing.text(0, top + rows * cell + 18, f"{rows} {rows_are} × {depth} terms", "head")
    drawing.cells(0, top, rows, depth, cell, "taps")
    drawing.cells(left, top, rows, columns, cell)
    down, along = (rows // tall // 3) * tall, (columns // wide // 3) * wide
    drawing.area(0, top + down * cell, depth * cell, tall * cell, "neighbour", "rows that the marked thread reads")
    drawing.area(left + along * cell, 36, wide * cell, depth * cell, "thread", "columns that the marked thread reads")
    drawing.area(left + along * cell, top + down * cell, wide * cell, tall * cell, "own", "the marked thread's outputs")
    drawing.arrow(depth * cell, top + (down + tall / 2) * cell, left + along * cell, top + (down + tall / 2) * cell)
    middle = left + (along + wide / 2) * cell
    drawing.arrow(middle, 36 + depth * cell, middle, top + down * cell)
    drawing.lines_of_text(
        left + columns * cell + 16,
        top + 12,
        [
            f"{sizes['threads']:,} threads a block",
            f"a thread's outputs: {tall} × {wide}",
            f"a term: {tall} + {wide} values read,",
            products,
        ],
    )
    return drawing


def fragments(sizes: Sizes) -> Drawing:
    """The operands of one tensor-core instruction, and what one lane holds of them."""
    cell, lane_row, lane_column = 15, 1, 1
    drawing = Drawing(
        f"One mma: 16 rows x 8 words times 8 words x 8 columns, {sizes['terms']} terms. The marked lane holds 4 words "
        f"of the first operand, 2 of the second and 4 sums. A warp computes {sizes['down']} x {sizes['across']} of "
        "these tiles."
    )
    left, top = 8 * cell + 40, 40 + 8 * cell
    drawing.text(left, 12, f"8 words × 8 {sizes.words['columns_are']}", "head")
    drawing.cells(left, 22, 8, 8, cell, "shared")
    drawing.text(0, top + 16 * cell + 18, f"16 {sizes.words['rows_are']} × 8 words", "head")
    drawing.cells(0, top, 16, 8, cell, "taps")
    drawing.cells(left, top, 16, 8, cell)
    for half in (0, 1):
        column = left + lane_row * cell
        drawing.area(column, 22 + (lane_column + 4 * half) * cell, cell, cell, "thread", "the lane's words")
        drawing.area(
            left + 2 * lane_column * cell, top + (lane_row + 8 * half) * cell, 2 * cell, cell, "own", "its sums"
        )
        for quarter in (0, 1):
            x, y = (lane_column + 4 * quarter) * cell, top + (lane_row + 8 * half) * cell
            drawing.area(x, y, cell, cell, "neighbour", "the lane's words")
    drawing.lines_of_text(
        left + 8 * cell + 18,
        top + 12,
        [
            "lane 5 of 32: 4 + 2 words in, 4 sums",
            f"one instruction of a warp: {128 * sizes['terms']:,} multiply-adds",
            f"a warp: {sizes['down']} × {sizes['across']} of these tiles",
            f"each word of the left serves {sizes['across']} tiles,",
            f"each of the top {sizes['down']}",
        ],
    )
    return drawing


def passes(sizes: Sizes) -> Drawing:
    """Kernels that hand matrices on through device memory; ``terms`` is 0 where nothing is unrolled."""
    terms, columns = sizes["terms"], sizes["columns"]
    boxes = ["im2col", "cuBLAS", "layout"] if terms else ["cuBLAS", "bias, activation"]
    drawing = Drawing(" then ".join(boxes) + ": each pass reads and writes its matrices in device memory.")
    between = [f"{terms:,} × {columns:,} values", "product"] if terms else ["product"]
    for number, name in enumerate(boxes):
        x = number * 230
        drawing.area(x, 20, 110, 46, "own", name)
        drawing.text(x + 55, 48, name, "head", "middle")
        if number < len(between):
            drawing.arrow(x + 112, 43, x + 228, 43)
            drawing.text(x + 170, 36, "memory", "quiet", "middle")
            drawing.text(x + 170, 84, between[number], "quiet", "middle")
    if terms:
        drawing.lines_of_text(0, 112, [f"an image's {sizes['pixels']:,} values become {terms * columns:,}"])
    return drawing


def split(sizes: Sizes) -> Drawing:
    """One sum cut into parts that several blocks compute."""
    parts, part = sizes["parts"], sizes["part"]
    shown, width = min(parts, 12), 44
    drawing = Drawing(
        f"A sum of {sizes['depth']} terms is cut into {parts} parts of {part}; a block adds up each part."
    )
    drawing.text(0, 12, f"{sizes['depth']:,} terms of one sum", "head")
    for number in range(shown):
        drawing.area(number * (width + 4), 22, width, 24, ("shared", "taps")[number % 2], f"part {number + 1}")
        drawing.text(number * (width + 4) + width / 2, 39, f"block {number + 1}", "small", "middle")
        drawing.arrow(number * (width + 4) + width / 2, 48, shown * (width + 4) / 2, 96)
    drawing.area(shown * (width + 4) / 2 - 90, 98, 180, 26, "own", "second kernel")
    drawing.text(shown * (width + 4) / 2, 115, f"adds {parts} parts in order", "", "middle")
    return drawing


def ring(sizes: Sizes) -> Drawing:
    """Warps that copy ahead of warps that multiply, through a ring of stages in shared memory."""
    stages = sizes["stages"]
    drawing = Drawing(
        f"{sizes['producers']} producer threads fill a ring of {stages} stages in shared memory; {sizes['consumers']} "
        f"consumer threads multiply {sizes['tile']} outputs x {sizes['rows']} images from it by wgmma."
    )
    drawing.area(0, 50, 130, 60, "neighbour", "producers")
    drawing.lines_of_text(10, 76, [f"{sizes['producers']} producers", "copy, convert"])
    for number in range(stages):
        drawing.area(190 + number * 40, 55, 36, 50, "shared", f"stage {number + 1}")
        drawing.text(208 + number * 40, 85, str(number + 1), "", "middle")
    right = 190 + stages * 40
    drawing.text(190, 44, f"ring of {stages} stages, {sizes['terms']} terms each", "head")
    drawing.arrow(132, 80, 186, 80)
    drawing.arrow(right, 80, right + 50, 80)
    drawing.area(right + 54, 50, 190, 60, "own", "consumers")
    drawing.lines_of_text(
        right + 64, 76, [f"{sizes['consumers']} consumers: wgmma,", f"{sizes['tile']} outputs × {sizes['rows']} images"]
    )
    return drawing
