"""Draw which thread reads which data, with a kind of drawing for each way to divide a layer among threads.

A lesson names the kind and gives formulas for its sizes, so that a drawing shows how the kernel is launched.
"""

from collections.abc import Callable, Mapping

from app.drawing.svg import Drawing
from app.ladder import matrix_tiles, pixel_tiles, warpgroup_tiles
from app.ladder.formulas import Names, evaluate_formula
from app.ladder.lessons import Step

WORDS = ("kind", "taps", "where", "rows_are", "columns_are")  # parameters of a drawing that are text, not formulas
KINDS: Mapping[str, Callable[..., Drawing]] = {
    "window": pixel_tiles.draw_global_window,
    "tile": pixel_tiles.draw_shared_tile,
    "patch": pixel_tiles.draw_register_patch,
    "points": pixel_tiles.draw_toom_cook,
    "product": matrix_tiles.draw_matrix_product,
    "fragments": matrix_tiles.draw_mma_fragments,
    "passes": matrix_tiles.draw_kernel_passes,
    "split": matrix_tiles.draw_split_sum,
    "ring": matrix_tiles.draw_stage_ring,
    "operands": warpgroup_tiles.draw_shared_operands,
    "sparse": warpgroup_tiles.draw_sparse_operands,
}


def draw_step(step: Step, names: Names) -> Drawing:
    """Return the drawing of a step on a layer. names: name in formulas → its value for the layer."""
    given = step.lesson.drawing
    sizes = {name: text if name in WORDS else round(evaluate_formula(text, names)) for name, text in given.items()}
    return KINDS[given["kind"]](**{name: size for name, size in sizes.items() if name != "kind"})
