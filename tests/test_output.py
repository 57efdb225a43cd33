"""Test that no command overwrites its inputs, another of its outputs, or a file that it did not write before."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.errors import UserError
from app.output import INPUTS, OUTPUTS, check_outputs
from tests.support.shell import Refuses, listing, parsers, write_good_files

RUN = "--device cpu --data images --labels labels --weights weights.h5"
TRAIN = "train --network mlp --data images --labels labels --output new.h5"
PROFILE = "profile --weights weights.h5"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
    # Four are folders; predict's paths may be those, too. Shards may be patterns.
    assert named | {"paths", "shards"} == {*INPUTS, *OUTPUTS, "data_dir", "plot", "folder", "pages"}


def chain(path: Path, other: Path) -> None:
    path.with_name("middle").symlink_to(other)
    path.symlink_to(path.with_name("middle"))


LINKS: dict[str, Callable[[Path, Path], object]] = {
    "symbolic link": Path.symlink_to,
    "hard link": Path.hardlink_to,
    "chain of links": chain,
}
CLASHES = [
    (RUN, "json", "weights", "weights.h5"),
    (RUN, "json", "data", "images"),
    (RUN, "json", "labels", "labels"),
    (PROFILE, "json", "weights", "weights.h5"),
    (PROFILE, "trace", "weights", "weights.h5"),
    (TRAIN, "json", "data", "images"),
    (TRAIN, "json", "labels", "labels"),
    (TRAIN.replace("new.h5", "images"), "output", "data", "images"),
]


@pytest.mark.parametrize(("command", "written", "read", "name"), CLASHES)
@pytest.mark.parametrize("how", ["itself", "dot", "whole path", *LINKS])
def test_an_output_is_no_input(
    command: str, written: str, read: str, name: str, how: str, place: Path, refuses: Refuses
) -> None:
    target = {"dot": f"./{name}", "whole path": str(place / name)}.get(how, name)
    if how in LINKS:
        target = "link"
        LINKS[how](place / target, place / name)
    before = listing(place)
    if written == "output":
        command = command.replace(f"--output {name}", f"--output {target}")
    else:
        command = f"{command} --{written} {target}"
    refuses(command, f"--{written} .* is the same file as --{read} {name}: name different files")
    assert listing(place) == before


@pytest.mark.parametrize("names", [("new", "new"), ("new", "./new"), ("new", "folder/../new")])
def test_two_outputs_are_two_files(names: tuple[str, str], place: Path, refuses: Refuses) -> None:
    (place / "folder").mkdir()
    wrong = "--json new is the same file as --trace .*new: name different files"
    refuses([*PROFILE.split(), "--json", names[0], "--trace", names[1]], wrong)


OURS = {"json": '{\n  "schema": "lenet5-inference/bench/1",\n', "trace": '{"traceEvents": ['}
THEIRS = [
    "text",
    "{}",
    '{"schema": "lenet5-inference/tuning/1"}',
    '{"schema": "lenet5-inference/receipt/1"}',
    '{"schema": "other/1"}',
    " " * 999 + "text",
    "[1]",
]


@pytest.mark.parametrize("option", OURS)
@pytest.mark.parametrize("content", THEIRS)
def test_a_file_that_is_there_is_kept_unless_we_wrote_it(option: str, content: str, place: Path) -> None:
    (place / "old").write_text(content)
    with pytest.raises(UserError, match=f"--{option} old already exists, and no run .*: name another file, or rem"):
        check_outputs({option: "old"})
    for ours in ("", OURS[option]):
        (place / "old").write_text(ours)
        check_outputs({option: "old"})


@pytest.mark.parametrize("command", ["networks", "kernels", RUN])
def test_whoever_writes_json_keeps_what_others_wrote(command: str, place: Path, refuses: Refuses) -> None:
    (place / "notes").write_text("mine")
    refuses(f"{command} --json notes", "--json notes already exists")
    assert (place / "notes").read_text() == "mine"


@pytest.mark.parametrize("command", ["networks", "kernels", RUN])
def test_what_was_written_is_written_again(command: str, place: Path) -> None:
    for _ in range(2):
        assert main([*command.split(), "--json", "report"]) == 0
        assert json.loads((place / "report").read_text())["schema"].startswith("lenet5-inference/")


def test_a_plot_takes_the_place_of_plots_alone(tmp_path: Path) -> None:
    from app import figures

    class Figure:
        def savefig(self, path: Path, **_: Any) -> None:
            path.write_bytes(figures.PNG + b"new")

    path = tmp_path / "plot.png"
    path.write_text("notes")
    with pytest.raises(UserError, match=r"plot.png already exists and is not a picture: remove it"):
        figures.save(Figure(), path)
    for old in (b"", figures.PNG + b"old"):
        path.write_bytes(old)
        assert figures.save(Figure(), path).read_bytes() == figures.PNG + b"new"
