"""Test docs/learn.md (commands of its exercises, and stated outcomes) and docs/notebook.ipynb (all cells run)."""

import json
import re
import shlex
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from app.cli import load_parser, main
from app.cuda.device import why_no_gpu
from app.kernels import registry
from app.ladder.stored import LEARN
from app.network.definitions import LENET5
from app.planning.matching import Choices
from app.planning.plan import plan
from docs.generate.__main__ import ROOT
from docs.generate.figures import FIGURES, RESOURCES, Figures
from tests.support.host_kernels import skip_without_compiler
from tests.support.networks_for_tests import random_graph

TEXT = LEARN.read_text(encoding="utf-8")
EXERCISES = re.findall(r"^### (\d+)\. (.*?)\n(.*?)(?=^### |\Z)", TEXT, re.M | re.S)
FENCES = {kind: re.findall(rf"^```{kind}\n(.*?)^```", TEXT, re.M | re.S) for kind in ("sh", "console")}
QUICK_COMMANDS, SLOW_COMMANDS = (
    [line for fence in FENCES[kind] for line in fence.splitlines()] for kind in ("sh", "console")
)


def stated_outcome(number: int) -> str:
    """Return the stated_outcome that an exercise states, as one line."""
    (found,) = re.findall(r"<summary>Outcome</summary>\n(.*?)</details>", EXERCISES[number - 1][2], re.S)
    return " ".join(found.split())


REAL_RUN = subprocess.run


def run_in_this_process(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Do the same as subprocess.run, but run ``python main.py …`` in this process, which saves time."""
    if command[:2] != [sys.executable, "main.py"]:
        return REAL_RUN(command, **options)
    with chdir(options["cwd"]), redirect_stdout(StringIO()) as said, redirect_stderr(said):
        code = main(command[2:])
    return subprocess.CompletedProcess(command, code, said.getvalue())


@pytest.mark.parametrize("line", QUICK_COMMANDS)
def test_quick_commands_work(line: str) -> None:
    done = run_in_this_process([sys.executable, *shlex.split(line)[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + (done.stderr or "")
    if "products.py" in line:
        errors = re.findall(r"2\^-\d+\.\d", done.stdout)
        assert len(errors) == 4 and errors == re.findall(r"2\^-\d+\.\d", stated_outcome(5))


@pytest.mark.parametrize("line", SLOW_COMMANDS)
def test_slow_commands_are_valid(line: str) -> None:
    _, first, *words = shlex.split(line)
    match first:
        case "main.py":
            command = words.pop(0) if not words[0].startswith("-") else "run"
            # my-idea is the kernel that the reader writes in the last exercise.
            load_parser(command).parse_args([word.replace("my-idea", "direct") for word in words])
        case "-m":
            assert words[0] == "pytest" and all((ROOT / word).exists() for word in words if word.endswith(".py"))
        case _:
            assert (ROOT / first).exists()


def test_launches_and_bytes_in_learn_md_equal_the_plans() -> None:
    graph = random_graph(LENET5, bias=False)
    separate = plan(graph, "sm_90a", Choices("fp32", fuse=False))
    assert f"takes {len(separate.nodes)} launches, with fusion 2." in stated_outcome(2)
    done = [
        run_in_this_process([sys.executable, *line.split()[1:]], cwd=ROOT).stdout
        for line in QUICK_COMMANDS
        if line.startswith("python main.py graph --") and "network" not in line
    ]
    sums = []
    for text in done:
        _, launches = text.split("launches on")
        sums.append(sum(int(found.replace(",", "")) for found in re.findall(r"\d\.\d{4} +([\d,]+)$", launches, re.M)))
    assert [f"{total:,}" for total in sums] == re.findall(r"\d+,\d{3}", stated_outcome(2))


def test_registers_in_learn_md_equal_the_stored_ones() -> None:
    rows = {(row["name"], row["layer"]): row for row in Figures(FIGURES)[RESOURCES]["resources"]}
    direct, tiled = rows["direct", "conv2"], rows["register-tiled", "conv2"]
    told = f"`direct` uses {direct['registers']} registers and reaches an occupancy of {direct['occupancy']:.0%}; "
    told += f"`register-tiled` uses {tiled['registers']} registers and reaches {tiled['occupancy']:.0%}."
    assert told in stated_outcome(3)


def test_more_maps_change_two_layers_as_learn_md_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "docs" / "networks" / "lenet5_original.toml"
    more = tmp_path / "more.toml"
    more.write_text(path.read_text(encoding="utf-8").replace("maps = 6", "maps = 8"), encoding="utf-8")
    counts = []
    for file in (path, more):
        assert main(["graph", "--network", str(file), "--arch", "sm_90a"]) == 0
        lines = capsys.readouterr().out.splitlines()
        counts.append(
            {cells[0]: cells[-3] for line in lines if len(cells := line.split()) > 2 and cells[0][-1].isdigit()}
        )
    few, many = counts
    assert {name for name in few if few[name] != many[name]} == {"conv1", "conv2"}
    for name in ("conv1", "conv2"):
        assert re.search(rf"{name} (?:has )?{many[name]} (?:parameters )?instead of {few[name]}\b", stated_outcome(6))


def test_the_last_exercise_uses_a_free_step_number() -> None:
    taken = {row.step for row in registry.variants("conv")}
    (step,) = re.findall(r"conv_(\d+)_my_idea\.cu", EXERCISES[-1][2])
    assert int(step) not in taken and EXERCISES[-1][1] == f"Write step {step}"


def test_the_reading_order_follows_the_ladder() -> None:
    """Where docs/learn.md says "from `a` to `b`", step b continues a, directly or over other steps."""
    since = {row.name: row.since for row in registry.variants("conv")}
    for first, last in re.findall(r"from\s+`([\w-]+)`\s+to\s+`([\w-]+)`", TEXT):
        while last != first:
            last = since[last]
            assert last, first


NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
NOTEBOOK_CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
# Regular expression of what each code cell prints, in order.
CELL_OUTPUTS = (
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


def test_the_notebook_is_short_and_has_no_outputs() -> None:
    assert len(NOTEBOOK_CELLS) <= 25 and len({cell["id"] for cell in NOTEBOOK_CELLS}) == len(NOTEBOOK_CELLS)
    lines = [line for cell in NOTEBOOK_CELLS for line in cell["source"]]
    assert max(map(len, lines)) <= 121  # 120 and the newline
    assert not any(cell["outputs"] or cell["execution_count"] for cell in NOTEBOOK_CELLS if cell["cell_type"] == "code")
    links = re.findall(r"\]\(([^)]+)\)", "".join(lines))
    assert links and all((NOTEBOOK.parent / link).exists() for link in links)


def test_every_notebook_cell_prints_what_the_text_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_compiler()
    monkeypatch.chdir(NOTEBOOK.parent)
    monkeypatch.setattr(subprocess, "run", run_in_this_process)
    names: dict[str, Any] = {}
    code = [cell for cell in NOTEBOOK_CELLS if cell["cell_type"] == "code"]
    for cell, shown in zip(code, CELL_OUTPUTS, strict=True):
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        printed = capsys.readouterr().out
        assert re.search(shown, printed, re.S) if shown else not printed, cell["id"]
    folder = Path(names["FOLDER"].name)
    names["FOLDER"].cleanup()
    assert not folder.exists()
