"""Test that tables and paragraphs fit the width, and that control characters in names never reach the terminal."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.base.errors import UserError, escape_unprintable, print_to_stderr
from app.cli import main
from app.network.definitions import LENET5
from app.network.weights import save_weights
from app.terminal.text import UNLIMITED, Column, fields, format_factor, format_ms, paragraph, table, terminal_width
from data_tools.__main__ import main as data_tools_main
from data_tools.idx import write_idx
from tests.lab.compare.test_compare import REPORT
from tests.support.networks_for_tests import random_graph, random_images
from tests.support.shell import COMMAND, ROOT, python

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


def test_a_remark_fills_the_columns_of_missing_cells() -> None:
    rows = [*ROWS, ["tensor-core", "–", "needs sm_80 or newer, and this card is a Tesla V100 (sm_70)"]]
    assert table(COLUMNS, rows, 60)[-2:] == [
        "  tensor-core             –  needs sm_80 or newer, and this",
        "                             card is a Tesla V100 (sm_70)",
    ]
    # It stays if its column is left out.
    assert table(COLUMNS, [["direct", "–", "wrong"], *ROWS], 40)[1] == "  direct                  –  wrong"


def test_a_remark_is_kept_whatever_columns_are_shown() -> None:
    """The last column, as wide as its other cells, may have a remark, and so may one left of columns without text."""
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


def test_empty_columns_are_left_out() -> None:
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
    assert paragraph("see docs/fast-path.md", 10) == ["see", "docs/fast-path.md"]  # a name is not divided


def test_the_width_is_that_of_the_terminal_and_at_least_60(monkeypatch: pytest.MonkeyPatch) -> None:
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


EVIL = "a\033[2J\033]0;x\a\r\bb\x9b31m\u202ec\nerror: no"
SPELT = r"a\x1b[2J\x1b]0;x\x07\r\x08b\x9b31m\u202ec\nerror: no"
CONTROL = re.compile("[\0-\\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with images, weights and reports; the folder and its files are named EVIL."""
    folder = tmp_path / EVIL
    folder.mkdir()
    monkeypatch.chdir(folder)
    images = random_images(LENET5, 3)
    np.save(f"{EVIL}.npy", images)
    write_idx(Path(EVIL), images[:, 0])
    arrays = random_graph(LENET5, bias=False).parameters
    save_weights(Path(f"{EVIL}.h5"), arrays, network=LENET5)
    report = {**REPORT, "schema": "lenet5-inference/report/4", "layers": [{**REPORT["layers"][0], "name": EVIL}]}
    for name in ("before", "after"):
        Path(f"{name}{EVIL}.json").write_text(json.dumps(report))
    return folder


RUN = ("--device", "cpu", "--data", EVIL, "--labels", "none", "--weights", f"{EVIL}.h5")
ANSWERED = {
    "the main job": [*RUN],
    "export": ["export", f"{EVIL}.h5", "--out", f"{EVIL}.npz"],
    "evaluate": ["evaluate", *RUN[:4], *RUN[-2:], "--against", f"{EVIL}.h5"],
    "compare": ["compare", f"before{EVIL}.json", f"after{EVIL}.json"],
}
REFUSED = {
    "an option": ["--batch", EVIL],
    "a command": [EVIL],
    "a missing file": ["--weights", f"missing{EVIL}"],
    "a wrong file": ["--weights", EVIL],
    "a network": ["--network", EVIL],
    "predict": ["predict", f"{EVIL}.npy", EVIL, "--device", "cpu"],
    "a picture": ["predict", f"{EVIL}.png"],
    "classify": ["classify", EVIL, f"missing{EVIL}", "--device", "cpu", "--out", f"out{EVIL}"],
    "data_tools": ["verify", "--data-dir", EVIL],
}
# A program that runs several commands, given as JSON, and prints the name of each.
ONE_BY_ONE = """
import json, sys
from app.cli import main
for what, words in json.loads(sys.argv[1]).items():
    print(f"@@{what}", flush=True)
    main(words)
"""


def run_command(words: Sequence[str]) -> tuple[str, str]:
    """Run a command; return standard output and standard error."""
    done = subprocess.run([*COMMAND, *words], capture_output=True, timeout=60)
    return done.stdout.decode(), done.stderr.decode()


def check_printable(text: str) -> None:
    assert "a\\x1b[2J" in "".join(text.split()), text
    assert not CONTROL.search(text), ascii(text)
    assert "\nerror: no" not in text


@pytest.mark.parametrize("what", REFUSED)
def test_no_error_has_a_control_character(what: str, cwd: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):  # raised by the parser
        (data_tools_main if what == "data_tools" else main)(REFUSED[what])
    check_printable("".join(capfd.readouterr()))


def test_no_answer_has_a_control_character(cwd: Path) -> None:
    """The commands run in a child process."""
    done = python(ONE_BY_ONE, json.dumps(ANSWERED), cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)})
    answers = done.stdout.split("@@")[1:]
    assert [answer.partition("\n")[0] for answer in answers] == [*ANSWERED], done.stderr
    for answer in answers:
        check_printable(answer)
    assert not CONTROL.search(done.stderr)


def run_on_terminal(command: Sequence[str], code: int = 0) -> bytes:
    """Run Python on a pseudo-terminal; return what it writes to it. code: expected exit code."""
    ours, its = pty.openpty()
    with subprocess.Popen([sys.executable, *command], stdout=its, stderr=its, stdin=its) as process:
        os.close(its)
        found = b""
        try:
            while part := os.read(ours, 1 << 16):
                found += part
        except OSError:  # the process has ended
            pass
        os.close(ours)
    assert process.returncode == code, found
    return found


def test_csv_is_exact_in_a_file_and_harmless_on_a_terminal(cwd: Path) -> None:
    words = ["predict", f"{EVIL}.npy", EVIL, "--device", "cpu", "--out", "-"]
    assert EVIL in run_command(words)[0]
    shown = run_on_terminal([str(ROOT / "main.py"), *words]).decode()
    assert SPELT.replace("\\n", "\r\n") in shown
    assert not re.search("[\x07\x08\x9b\u202e]|\033\\[2J", shown)


@pytest.mark.parametrize(
    ("device", "line"), [("auto", b"looking for a GPU\r\n"), ("cuda", b"starting the GPU\r\n"), ("cpu", b"")]
)
def test_a_line_says_that_the_gpu_is_started(device: str, line: bytes, cwd: Path) -> None:
    """The line appears only on a terminal, before CuPy is loaded, which takes long."""
    words = ["--device", device, "--data", "absent"]
    first, *_ = run_on_terminal([str(ROOT / "main.py"), *words], 2).splitlines(keepends=True)
    assert first == line if line else first.startswith(b"error: ")
    assert device != "auto" or "GPU\n" not in run_command(words)[1]


def test_colours_of_verdicts_are_kept(tmp_path: Path) -> None:
    code = "from app.terminal.console import colour_verdicts, run_guarded; text = 'PASSED \\033[32mx'; "
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; {code} run_guarded(lambda: print(colour_verdicts(text)) or 0)"
    assert b"\033[32mPASSED\033[0m \\x1b[32mx" in run_on_terminal(["-c", code])


def test_every_note_is_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_to_stderr(f"note: {EVIL}")
    assert capsys.readouterr().err == f"note: {SPELT}\n"
    files = {path for folder in ("app", "data_tools") for path in (ROOT / folder).rglob("*.py")}
    others = files - {ROOT / "app" / "base" / "errors.py", ROOT / "app" / "terminal" / "console.py"}
    assert not [path for path in others if re.search(r"\bprint\(.*file=sys\.stderr", path.read_text())]


def test_an_error_is_one_printable_line() -> None:
    assert str(UserError(EVIL)) == escape_unprintable(EVIL) == SPELT
    assert escape_unprintable("x × → 中 \udcff") == r"x × → 中 \udcff"
