"""What is wrong with options is said before any data are fetched: none lie ready here, and no test may fetch them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from app.cli import main
from data_tools.__main__ import main as data_tools
from tests.support.shell import check_error, listing

PLOT_ERROR = "--plot needs matplotlib"
if importlib.util.find_spec("matplotlib") is not None:
    PLOT_ERROR = "--plot file/plots cannot be written: Not a directory"
MISTAKES = {
    "--batch 10001": "--batch 10001 is more than the 10000 images of Fashion-MNIST test split: add --cycle",
    "--batch 60001 --split train": "--batch 60001 is more than the 60000 images",
    "--labels file": "--labels FILE goes with --data FILE",
    "--json nowhere/report.json": "--json nowhere/report.json cannot be written",
    "--network nonsense": "unknown network 'nonsense'",
    "--conv nonsense": "nonsense",
    "--fc conv1=naive": "has no layer 'conv1' for --fc",
    "accuracy --json nowhere/report.json": "--json nowhere/report.json cannot be written",
    "accuracy --network nonsense": "unknown network 'nonsense'",
    "train --network mlp --plot file/plots": PLOT_ERROR,
    "train --network mlp --output nowhere/weights.h5": "--output nowhere/weights.h5 cannot be written",
    "train --network mlp --json nowhere/report.json": "--json nowhere/report.json cannot be written",
    "train --network mlp --images 60001": "--images 60001 is more than the 60000 of Fashion-MNIST train split",
    "train --network mlp --images 10 --validation 10": "--validation 10 leaves none of the 10 images",
    "train --network mlp --dropout fc9=0.5": "no layer 'fc9' for --dropout",
    "train --network mlp --workers 9 --batch 8": "--workers 9 is more than the 8 images of a batch",
    "train --network mlp_9999999": "9999999",
    "train --network mlp --labels file": "--labels FILE goes with --data FILE",
    "bench --plot file/plots": PLOT_ERROR,
    "sweep --conv shared-tile --plot file/plots": PLOT_ERROR,
    "profile --network nonsense": "unknown network 'nonsense'",
    "data_tools resize --size 0 --split test out": "--size 0 is not between 1 and",
    "data_tools resize --size 9 --split test file more": "name one or the other",
    "data_tools bundle nowhere.h5": "nowhere.h5 does not exist",
}


@pytest.mark.parametrize("command", MISTAKES)
def test_mistake(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    program, arguments = main, command.split()
    if arguments[0] == "data_tools":
        program, arguments = data_tools, arguments[1:]
    elif arguments[0] not in ("bench", "sweep", "profile"):
        arguments += ["--device", "cpu"]
    check_error(program(arguments), *capsys.readouterr(), MISTAKES[command])
    assert list(listing(tmp_path)) == ["file"]


def test_a_wish_that_can_be_met_would_fetch(outside: object, capsys: pytest.CaptureFixture[str]) -> None:
    """So the table above is not empty talk; and what tries to fetch is noticed."""
    assert main(["--device", "cpu"]) == 2
    assert "cannot get Fashion-MNIST: no source worked" in capsys.readouterr().err
    tried = "\n".join(outside.taken())  # type: ignore[attr-defined]
    assert re.search(r"HEAD http://fashion-mnist", tried) and "CONNECT raw.githubusercontent.com:443" in tried
    assert "apt-get" in tried
