"""docs/notebook.ipynb: all cells run without a GPU, one after the other, and show what the text says."""

import json
import re
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.cuda.device import why_no_gpu
from docs.generate.__main__ import ROOT
from tests.support.host_kernels import skip_without_compiler

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
RUN = subprocess.run
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
# What each cell with code prints, in order.
SHOWN = (
    "",
    "",
    r"check loop\.cu .*\nright: 1 of 1",
    r"check broken\.cu .*broken\.cu:16: it reads x\[\d+\]: x has 3480\s+elements.*\nWRONG: 0 of 1",
    r"check tile\.cu .*\nright: 1 of 1",
    r"check no_barrier\.cu .*wrong among 4,000 outputs.*\nWRONG: 0 of 1",
    r"plain loop 25\.0.*TILE 16: 1\.56 pixels; threads with an output: conv1 56%, conv2 25%",
    r"check tile8\.cu .*\nright: 1 of 1",
    r"bench tile8\.cu .*" + ("tile8" if why_no_gpu() is None else "error: bench needs an NVIDIA GPU: "),
    r"conv1 on NVIDIA H100.* direct +\d.* shared-tile +\d.*\nconv2 on .* register-patch +\d\.\d+ ms  #{30}",
)


def test_it_is_short_and_has_no_outputs() -> None:
    assert len(CELLS) <= 25 and len({cell["id"] for cell in CELLS}) == len(CELLS)
    lines = [line for cell in CELLS for line in cell["source"]]
    assert max(map(len, lines)) <= 121  # with the line's end
    assert not any(cell["outputs"] or cell["execution_count"] for cell in CELLS if cell["cell_type"] == "code")
    links = re.findall(r"\]\(([^)]+)\)", "".join(lines))
    assert links and all((NOTEBOOK.parent / link).exists() for link in links)


def in_this_process(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """In place of subprocess.run: ``python main.py …`` runs here: spares its start, and shares what g++ compiles."""
    if command[:2] != [sys.executable, "main.py"]:
        return RUN(command, **options)
    with chdir(options["cwd"]), redirect_stdout(StringIO()) as said, redirect_stderr(said):
        code = main(command[2:])
    return subprocess.CompletedProcess(command, code, said.getvalue())


def test_every_cell_shows_what_the_text_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_compiler()
    monkeypatch.chdir(NOTEBOOK.parent)
    monkeypatch.setattr(subprocess, "run", in_this_process)
    names: dict[str, Any] = {}
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    for cell, shown in zip(code, SHOWN, strict=True):
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        printed = capsys.readouterr().out
        assert re.search(shown, printed, re.S) if shown else not printed, cell["id"]
    folder = Path(names["FOLDER"].name)
    names["FOLDER"].cleanup()
    assert not folder.exists()
