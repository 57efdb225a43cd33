"""Test that tables and paragraphs fit the given width."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.terminal.text import UNLIMITED, Column, fields, format_factor, format_ms, paragraph, table, terminal_width

COLUMNS = [
    Column("kernel", left=True),
    Column("ms"),
    Column("spread", optional=2),
    Column("TFLOP/s", optional=1),
    Column("note", left=True),
]
ROWS = [["13 register-patch", "1.5210", "0.0021", "33.12", "TILE=8"], ["direct", "20.75", "0.1", "2.4", ""]]


def test_every_column_stands_under_its_head() -> None:
    assert table(COLUMNS, ROWS) == [
        "  kernel                 ms  spread  TFLOP/s  note",
        "  13 register-patch  1.5210  0.0021    33.12  TILE=8",
        "  direct              20.75     0.1      2.4",
    ]


def test_columns_without_room_are_left_out_by_rank_and_named() -> None:
    assert table(COLUMNS, ROWS, 46) == [
        "  kernel                 ms  TFLOP/s  note",
        "  13 register-patch  1.5210    33.12  TILE=8",
        "  direct              20.75      2.4",
        "  (--wide adds: spread)",
    ]
    assert table(COLUMNS, ROWS, 36)[-1] == "  (--wide adds: spread, TFLOP/s)"


def test_a_remark_runs_over_the_columns_that_are_missing() -> None:
    rows = [*ROWS, ["tensor-core", "–", "needs sm_80 or newer, and this card is a Tesla V100 (sm_70)"]]
    assert table(COLUMNS, rows, 60)[-2:] == [
        "  tensor-core             –  needs sm_80 or newer, and this",
        "                             card is a Tesla V100 (sm_70)",
    ]
    # It outlives its column.
    assert table(COLUMNS, [["direct", "–", "wrong"], *ROWS], 40)[1] == "  direct                  –  wrong"


def test_a_remark_is_kept_whatever_columns_are_shown() -> None:
    """Also in the last one, which then is as wide as its other cells; and if columns to its right have no text."""
    rows = [["13 register-patch", "1.5210", "0.0021", "33.12", ""], ["direct", "20.75", "0.1", "stopped by hand"]]
    assert table(COLUMNS, rows, 41)[2:] == [
        "  direct              20.75  stopped by",
        "                             hand",
        "  (--wide adds: spread)",
    ]
    assert table(COLUMNS, rows, 34)[2:] == [
        "  direct              20.75",
        "                 stopped by hand",
        "  (--wide adds: spread, TFLOP/s)",
    ]


def test_a_name_without_room_is_wrapped_in_its_column() -> None:
    columns = [Column("layers", left=True), Column("kernel", left=True), Column("ms")]
    assert table(columns, [["conv1+relu1+pool1+conv2+relu2+pool2", "wgmma-split", "0.35"]], 42) == [
        "  layers                 kernel         ms",
        "  conv1+relu1+pool1+     wgmma-split  0.35",
        "  conv2+relu2+pool2",
    ]


def test_a_column_in_which_no_row_has_anything_is_left_out() -> None:
    assert table(COLUMNS, [["direct", "20.75", "", "2.4", ""], ["constant", "needs sm_80"]], 60) == [
        "  kernel       ms  TFLOP/s",
        "  direct    20.75      2.4",
        "  constant  needs sm_80",
    ]


NUMBERS, NAMES = st.text("123", max_size=8), st.text("abc ", max_size=50)


@given(
    st.lists(st.tuples(NAMES, NUMBERS, NUMBERS, NUMBERS, st.text("ab ", max_size=9)), max_size=6),
    st.integers(1, 5),
    st.integers(60, 130),
)
@example([("", "1" * 8, "1" * 8, "", ""), ("a" * 29, "", "", "1" * 8, "")], 4, 60)
def test_no_line_is_longer_than_the_width(rows: list[tuple[str, ...]], cells: int, width: int) -> None:
    assert all(len(line) <= width for line in table(COLUMNS, [row[:cells] for row in rows], width))


@given(st.lists(st.lists(st.text("abc", max_size=90), min_size=5, max_size=5), max_size=6))
def test_nothing_is_left_out_without_a_limit(rows: list[list[str]]) -> None:
    text = "\n".join(table(COLUMNS, rows, UNLIMITED))
    assert all(cell in text for row in rows for cell in row)


def test_fields_are_wrapped_under_their_values() -> None:
    assert fields([("device", "one two three four"), ("in", "x")], 20) == [
        "  device  one two",
        "          three four",
        "  in      x",
    ]


def test_a_paragraph_keeps_its_words_whole() -> None:
    assert paragraph("docs/fast-path.md has the notes", 20, "- ", "  ") == ["- docs/fast-path.md", "  has the notes"]
    assert paragraph("see docs/fast-path.md", 10) == ["see", "docs/fast-path.md"]  # a name stays whole


def test_the_width_is_the_terminals_and_at_least_60(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, width in (("132", 132), ("72", 72), ("40", 60)):
        monkeypatch.setenv("COLUMNS", columns)
        assert terminal_width() == width
    assert terminal_width(wide=True) == UNLIMITED


@pytest.mark.parametrize(
    ("shown", "numbers", "texts"),
    [
        (format_ms, (0.01234, 12.345, 123.45, 12345.6), "0.0123 12.35 123.5 12,346"),
        (format_factor, (0.0456, 2.345, 23.45, 2345), "0.05 2.35 23.4 2,345"),
    ],
)
def test_numbers_keep_three_figures(
    shown: Callable[[float | None], str], numbers: tuple[float, ...], texts: str
) -> None:
    assert [shown(number) for number in (None, *numbers)] == ["", *texts.split()]
