"""Write the section of each step: its text, by the head of its file and its lesson, and its gain, by the figures."""

from app.kernels.variant import Variant
from app.ladder.card import EXAMPLE, LATER, Card
from app.ladder.formulas import filled as computed
from app.ladder.steps import Step, ladder
from docs.generate.figures import Figures
from docs.generate.gains import gain
from docs.generate.tables import filled


def sections(operation: str, figures: Figures) -> str:
    """Write the sections of one ladder, in its order."""
    card = Card({EXAMPLE: figures.bench(EXAMPLE).document}, {})
    return "\n\n".join(_section(step, card, figures) for step in ladder(operation))


def _section(step: Step, card: Card, figures: Figures) -> str:
    row, lesson = step.row, step.lesson
    layers = [*card.layers(step)]
    names = next((layer for layer in layers if layer.name == LATER), layers[0]).names
    since = f" Continues `{row.since}`." if row.since and f"`{row.since}`" not in row.idea else ""
    idea = row.idea.replace("*", r"\*")
    texts = (
        f"[{row.source}](../app/kernels/{row.operation}/{row.source}). {idea}{since} {lesson.change} {_origin(row)}",
        lesson.detail,
        f"**Bound by:** {lesson.bound}",
    )
    prose = [filled(computed(text, names)) for text in texts if text]
    return "\n\n".join([f"### {row.step} `{row.name}`: {lesson.title}", *prose, gain(row.operation, row.name, figures)])


def _origin(row: Variant) -> str:
    if row.system.startswith(("none", "the yardstick")):
        return "No report had this kernel."
    return f"From {', '.join(f'`{system}`' for system in row.system.split(', '))}."
