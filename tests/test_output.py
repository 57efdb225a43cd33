"""Test that no command overwrites its inputs, another of its outputs, or a file that it did not write before."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.base.errors import UserError
from app.cli import main
from app.drawing import svg
from app.terminal.output import INPUTS, OUTPUTS, check_outputs
from tests.support.host_kernels import skip_without_compiler
from tests.support.schemas import mistakes
from tests.support.shell import Refuses, listing, parsers, write_good_files

RUN = "--device cpu --data images --labels labels --weights weights.h5"
TRAIN = "train --network mlp --data images --labels labels --out new.h5"
PROFILE = "profile --weights weights.h5"


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_good_files(tmp_path)
    return tmp_path


def test_every_option_that_names_a_file_is_known_as_read_or_written() -> None:
    named = {
        action.dest
        for parser in parsers().values()
        for action in parser._actions
        if action.metavar in ("FILE", "OTHER") or action.type is Path
    }
    # The last four name folders; ``paths`` may, too, and ``shards`` may be patterns.
    assert named | {"paths", "shards"} == {*INPUTS, *OUTPUTS, "data_dir", "plot", "folder", "pages"}


def make_chain_of_links(path: Path, other: Path) -> None:
    path.with_name("middle").symlink_to(other)
    path.symlink_to(path.with_name("middle"))


LINKS: dict[str, Callable[[Path, Path], object]] = {
    "symbolic link": Path.symlink_to,
    "hard link": Path.hardlink_to,
    "chain of links": make_chain_of_links,
}
CLASHES = [
    (RUN, "json", "weights", "weights.h5"),
    (RUN, "json", "data", "images"),
    (RUN, "json", "labels", "labels"),
    (PROFILE, "json", "weights", "weights.h5"),
    (PROFILE, "trace", "weights", "weights.h5"),
    (TRAIN, "json", "data", "images"),
    (TRAIN, "json", "labels", "labels"),
    (TRAIN.replace("new.h5", "images"), "out", "data", "images"),
]


@pytest.mark.parametrize(
    ("command", "written", "read", "name", "how"),
    [*((*one, "itself") for one in CLASHES), *((*CLASHES[0], how) for how in ("dot", "whole path", *LINKS))],
)
def test_an_output_must_not_be_an_input(
    command: str, written: str, read: str, name: str, how: str, cwd: Path, refuses: Refuses
) -> None:
    target = {"dot": f"./{name}", "whole path": str(cwd / name)}.get(how, name)
    if how in LINKS:
        target = "link"
        LINKS[how](cwd / target, cwd / name)
    before = listing(cwd)
    if written == "out":
        command = command.replace(f"--out {name}", f"--out {target}")
    else:
        command = f"{command} --{written} {target}"
    refuses(command, f"--{written} .* is the same file as --{read} {name}: name different files")
    assert listing(cwd) == before


@pytest.mark.parametrize("names", [("new", "new"), ("new", "./new"), ("new", "folder/../new")])
def test_two_outputs_must_be_different_files(names: tuple[str, str], cwd: Path, refuses: Refuses) -> None:
    (cwd / "folder").mkdir()
    wrong = "--json new is the same file as --trace .*new: name different files"
    refuses([*PROFILE.split(), "--json", names[0], "--trace", names[1]], wrong)


@pytest.mark.parametrize("option", OUTPUTS)
def test_existing_files_are_replaced_only_on_request(option: str, cwd: Path) -> None:
    """Files of this program and dangling links are no exception. ``--init`` never replaces a file."""
    remedy = "remove it first" if option == "init" else "replace it with --overw"
    (cwd / "old").write_text('{"schema": "lenet5-inference/bench/1"}')
    (cwd / "link").symlink_to(cwd / "nothing")
    for name in ("old", "link"):
        for overwrite in {False, option == "init"}:
            with pytest.raises(UserError, match=f"{name} exists: name another --{option}, or {remedy}"):
                check_outputs({option: Path(name), "overwrite": overwrite})
        if option != "init":
            check_outputs({option: Path(name), "overwrite": True})


@pytest.mark.parametrize("command", ["networks", "kernels", "graph", RUN, "predict images --out new.csv"])
def test_json_replaces_a_file_only_on_request(command: str, cwd: Path, refuses: Refuses) -> None:
    (cwd / "report").write_text("mine")
    refuses(f"{command} --json report", "report exists: name another --json, or replace it with --overwrite")
    assert (cwd / "report").read_text() == "mine" and not (cwd / "new.csv").exists()
    assert main([*command.split(), "--json", "report", "--overwrite"]) == 0
    assert json.loads((cwd / "report").read_text())["schema"].startswith("lenet5-inference/")


def test_a_file_that_another_program_writes_meanwhile_is_kept(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(report: Any) -> str:
        (cwd / "report").write_text("theirs")
        return "ours"

    monkeypatch.setattr("app.terminal.output.json_text", meanwhile)
    assert main(["networks", "--json", "report"]) == 2
    assert (cwd / "report").read_text() == "theirs"


JSON: dict[str, tuple[str, dict[str, Any]]] = {
    "graph": ("graph", {"network": "lenet5", "fused": True}),
    "check": ("check --fc naive --shape 5,3 --device cpu", {"kernel": "naive"}),
    "learn": ("learn", {"schema": "lenet5-inference/learn/1"}),
    "export": ("export weights.h5 --out new.npz", {"written": "new.npz", "format": "npz"}),
    "import": ("import weights.h5 --network lenet5 --out new.h5", {"written": "new.h5", "network": "lenet5"}),
    "predict": ("predict images --out new.csv", {"images": 3, "written": ["new.csv"]}),
    "precompile": ("precompile --arch sm_90a", {"architecture": "sm_90a"}),
}


@pytest.mark.parametrize("name", JSON)
def test_every_command_prints_json_alone(
    name: str, cwd: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, expected = JSON[name]
    if name == "check":
        skip_without_compiler()
    if name == "precompile":
        pytest.importorskip("cupy", reason="CuPy is not installed")
        monkeypatch.setattr("app.tools.precompile._compile_all", lambda builds, arch: len(builds))
    if name == "import":
        assert main(["export", "weights.h5", "--out", "old.npz"]) == 0
        command = command.replace("weights.h5", "old.npz")
        capsys.readouterr()
    assert main([*command.split(), "--json", "-"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == "" and expected.items() <= document.items() and not mistakes(document)


def test_every_command_has_json() -> None:
    assert not [name for name, parser in parsers().items() if "--json" not in parser._option_string_actions]


def test_predict_prints_json_lines(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "images", "--format", "jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["number"] for row in rows] == [0, 1, 2]
    assert main(["predict", "images", "--format", "csv", "--out", "-"]) == 0
    assert capsys.readouterr().out.startswith("number,")


def test_a_plot_replaces_only_plots(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    for foreign in ("notes", '<svg xmlns="http://www.w3.org/2000/svg" id="a drawing by hand">'):
        path.write_text(foreign)
        with pytest.raises(UserError, match=r"plot.svg already exists and is not a chart of this program: remove it"):
            svg.save_chart(svg.picture("new", "New", "A new one.", 9, 9, []), path)
        assert path.read_text() == foreign
    for old in ("", svg.FILE_START + "old"):
        path.write_text(old)
        assert "A new one." in svg.save_chart(svg.picture("new", "New", "A new one.", 9, 9, []), path).read_text()
