"""Write the table in docs/systems.md that compares our times with the required ones."""

from collections.abc import Iterator
from typing import NamedTuple

from app.lab.document import Row
from app.lab.peers.text import MEASURES
from app.terminal.text import format_factor, format_ms
from docs.generate.figures import Figures
from docs.generate.systems import END_TO_END, ON_CARD, ordered_comparisons, our_row, pair_with_fastest_peer
from docs.generate.tables import markdown_table, wrap_paragraph, yes_or_no

LEAST = {ON_CARD: 3.0, END_TO_END: 2.5}  # required time of the fastest peer ÷ ours
LEAST_MLP = LEAST | {END_TO_END: 1.1}  # the bus bounds it
BEYOND_CARD_MS = 0.2  # the largest allowed end-to-end time minus time on the card


class Goal(NamedTuple):
    """Required times in ms for ``images`` images, as (longest allowed, desired).

    An empty on_card requires nothing; an empty end_to_end allows on-card time + ``BEYOND_CARD_MS``.
    """

    network: str
    precision: str
    on_card: tuple[float, ...]
    end_to_end: tuple[float, ...] = ()
    images: int = 10_000


GOALS = (
    Goal("lenet5", "fp16", (0.095, 0.082), (0.180, 0.170)),
    Goal("lenet5", "fp32x", (0.190, 0.160), (0.215, 0.195)),
    Goal("lenet5", "int8", (0.074, 0.065), (0.178, 0.168)),
    Goal("lenet5", "fp16", (), (0.018, 0.015), 1),
    Goal("lenet5", "fp32x", (), (0.030, 0.025), 1),
    Goal("fa19", "fp16", (1.3, 0.8)),
    Goal("fa19", "fp32x", (3.2, 2.0)),
    Goal("k7", "fp16", (1.7, 1.1)),
    Goal("k7", "fp32x", (4.2, 2.8)),
    Goal("minidnn86", "fp16", (1.0, 0.5)),
    Goal("minidnn86", "fp32x", (1.8, 1.0)),
    Goal("mlp", "fp16", (0.020, 0.012), (0.185, 0.165)),
    Goal("mlp", "fp32x", (0.030, 0.020), (0.185, 0.165)),
)


def goals_table(figures: Figures) -> str:
    """Return the table: each required time beside our measured one, and our speed-up over the fastest peer."""
    head = ["network", "card", "as", "", "ms", "must", "aim", "met", "× fastest other", "must", "met"]
    stored = ordered_comparisons(figures)
    rows = [
        row
        for goal in GOALS
        for (*key, card), (_, comparison) in stored
        if key == [goal.network, goal.images, goal.precision] and our_row(comparison, goal.precision).get(ON_CARD)
        for row in _goal_rows(goal, card, comparison)
    ]
    rule = (
        'Each row gives our measured time, the longest time allowed (must) and the desired one (aim). "× fastest '
        'other" is the time of the fastest other system in the same precision (for fp32x, in fp32) ÷ ours, beside the '
        "least ratio allowed. The times allowed were set for an H100. "
        "For a network whose requirements name no end-to-end time, the longest one allowed is its measured time on the "
        f"card plus {BEYOND_CARD_MS:g} ms."
    )
    return f"{wrap_paragraph(rule)}\n\n{markdown_table(head, rows, 4)}"


def _goal_rows(goal: Goal, card: str, comparison: Row) -> Iterator[list[str]]:
    """Yield a goal's table rows: on the card and end to end, where a time is required. comparison: with the peers."""
    pairs = {measure: pair_with_fastest_peer(comparison, goal.precision, measure) for measure in MEASURES}
    beyond = ((pairs[ON_CARD].ours or 0) + BEYOND_CARD_MS,)
    asked = {ON_CARD: goal.on_card, END_TO_END: goal.end_to_end or beyond}
    where = f"`{goal.network}`" + ", one image" * (goal.images == 1)
    for measure, title in MEASURES.items():
        if not asked[measure]:
            continue
        found, times = pairs[measure], asked[measure]
        least = (LEAST_MLP if goal.network == "mlp" else LEAST)[measure]
        must, aim = f"≤ {times[0]:.3g}", f"{times[1]:.3g}" if len(times) > 1 else ""
        in_time = yes_or_no(found.ours is not None and found.ours <= times[0])
        ahead = "" if found.ratio is None else yes_or_no(found.ratio >= least)
        cells = [format_ms(found.ours), must, aim, in_time, format_factor(found.ratio), f"≥ {least:g}", ahead]
        yield [where, card, goal.precision, title, *cells]
