"""Test the files of ``main.py train``: checked at the start, locked, and never overwritten unasked."""

import errno
import json
import os
import signal
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from app.base.errors import UserError
from app.drawing import svg
from app.files.writing import replace_atomically
from app.network.weights import load_weights
from app.training import command
from tests.support.shell import Refuses, check_error, listing
from tests.support.training_for_tests import OWN, Refused, Train, begin, ended, unfinished, wait_for
from tests.training.test_train_command import CHECKPOINT, MLP, call_after_saving, check_failure, interrupt_after


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ("--resume c.checkpoint --out c.checkpoint", "--out c.checkpoint", "--resume c.checkpoint"),
        ("--resume c.checkpoint --out sub/../c.checkpoint", "--out sub/../c.checkpoint", "--resume"),
        ("--resume c.checkpoint --out link", "--out link", "--resume c.checkpoint"),
        ("--resume mlp_trained.h5", "--out mlp_trained.h5", "--resume mlp_trained.h5"),
        ("--resume c.checkpoint --json c.checkpoint", "--json c.checkpoint", "--resume c.checkpoint"),
        ("--network mlp --out same.h5 --json same.h5", "--out same.h5", "--json same.h5"),
        ("--resume c.checkpoint --json c", "--out c", "--json c"),
        ("--network mlp --json mlp_trained.h5.checkpoint", "--json mlp_trained.h5.checkpoint", "the checkpoint"),
        ("--network mlp --out images", "--out images", "--data images"),
        ("--network mlp --json labels", "--json labels", "--labels labels"),
        ("--network mlp --out a --data a.checkpoint", "the checkpoint a.checkpoint", "--data a.checkpoint"),
    ],
)
def test_equal_files_are_refused(options: str, first: str, second: str, refused: Refused, place: Path) -> None:
    """A training that wrote its weights over its checkpoint would remove them at its end."""
    unfinished(place / "c.checkpoint")
    (place / "mlp_trained.h5").write_bytes((place / "c.checkpoint").read_bytes())
    (place / "a.checkpoint").write_bytes((place / "images").read_bytes())
    (place / "sub").mkdir()
    (place / "link").symlink_to("c.checkpoint")
    own = ["--data", "images"] if "--data" not in options else []
    refused([*options.split(), *own, "--labels", "labels"], rf"{first} is the same file as {second}")


NAMES = ("", ".", "/", "..", "n" * 260)


@pytest.mark.parametrize(
    ("option", "name"),
    [*product(("--out", "--json"), NAMES), ("--out", "n" * 250)],
    ids=lambda text: f"{text[:3]}{len(text)}",
)
def test_names_that_cannot_be_written_are_refused(option: str, name: str, refused: Refused) -> None:
    """The checkpoint's name is 11 letters longer than that of the weights."""
    wrong = "File name too long" if len(name) > 200 else "it is not a regular file"
    refused([*MLP, option, name], f"{option} .* cannot be written: {wrong}; name a file")


def test_the_longest_names_are_written(train: Train, place: Path) -> None:
    name = "n" * (255 - len(".checkpoint"))
    assert train(*MLP, "--epochs", "1", "--out", name, "--json", "j" * 255)[0] == 0
    assert set(listing(place)) == {"images", "labels", name, "j" * 255}


@pytest.fixture
def skip_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("check_chart_folder", "create_chart_folder"):
        monkeypatch.setattr(svg, name, lambda folder: None)
    monkeypatch.setattr(command, "draw_learning_curve", lambda settings, progress, folder: folder / "curve")


@pytest.mark.parametrize(
    ("option", "function", "error"),
    [
        ("--json", "write_json", UserError("no room")),
        ("--plot", "draw_learning_curve", UserError("no room")),
        ("--json", "write_json", KeyboardInterrupt("interrupted")),
    ],
    ids=["json", "plot", "Ctrl-C"],
)
@pytest.mark.usefixtures("skip_drawing")
def test_the_checkpoint_is_kept_until_all_results_are_written(
    option: str, function: str, error: BaseException, train: Train, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resuming from the checkpoint writes the missing results, without training."""
    with monkeypatch.context() as patch:
        patch.setattr(command, function, Mock(side_effect=error))
        kept = f"{error}; {CHECKPOINT} stores the last complete epoch: continue with --resume {CHECKPOINT}"
        check_failure(train(*MLP, "--epochs", "2", option, "figures"), kept)
    weights = (place / "mlp_trained.h5").read_bytes()
    code, out, _ = train("--resume", CHECKPOINT, "--json", "log.json")
    assert code == 0 and "\nepoch " not in out
    assert (f"drew {place / 'figures' / 'curve'}" in " ".join(out.split())) == (option == "--plot")
    assert len(json.loads((place / "log.json").read_text())["epochs"]) == 2
    assert set(listing(place)) == {"images", "labels", "log.json", "mlp_trained.h5"}
    assert (place / "mlp_trained.h5").read_bytes() == weights


def test_resume_repeats_the_options_of_the_checkpoint(
    train: Train, place: Path, skip_drawing: None, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """The checkpoint's options name images and output files; options that are given with --resume replace them."""
    own = ["--out", "a/b.h5", "--json", "log.json", "--plot", "plots"]
    (place / "a").mkdir()
    with interrupt_after(1):
        check_failure(train(*MLP, "--epochs", "3", *own), "continue with --resume a/b.h5.checkpoint")
    (place / "log.json").write_text("precious")
    wrong = r"/log.json, the --json of the checkpoint, exists: name a file for the figures with --json"
    refused("--resume a/b.h5.checkpoint", wrong)
    monkeypatch.chdir(place / "a")
    with interrupt_after(2):
        hint = "--resume b.h5.checkpoint --out ../c.h5"
        check_failure(train("--resume", "b.h5.checkpoint", "--out", "../c.h5", "--json", "new.json"), hint)
    code, out, err = train(*hint.split())
    said = " ".join(out.split())
    assert (code, err) == (0, "") and f"drew {place / 'plots' / 'curve'}" in said
    kept = {"data": "images", "labels": "labels", "plot": "plots", "json": "a/new.json"}
    words = " ".join(f"--{name} {place / path}" for name, path in kept.items())
    assert f"note: b.h5.checkpoint was started with {words} " in said
    assert json.loads((place / "a" / "new.json").read_text())["best_epoch"]
    assert (place / "log.json").read_text() == "precious"


def test_a_refused_training_creates_no_plot_folder(refused: Refused, place: Path) -> None:
    refused([*MLP, "--images", "99999", "--plot", "plots"], "--images 99999 is more than")


# --- nothing is overwritten


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "folder's link"])
@pytest.mark.parametrize("name", ["mlp_trained.h5", "own.h5"])
def test_an_existing_output_is_refused(kind: str, name: str, refused: Refused, place: Path) -> None:
    """The command refuses before it trains: for the default name and --out, and with --resume."""
    target = place / ("precious" if "link" in kind else name)
    if kind == "folder's link":
        (place / "folder").mkdir()
        (place / "link").symlink_to("folder")
        target, name = place / "folder" / name, f"link/{name}"
    elif "link" in kind:
        (place / name).symlink_to("precious")
    if kind != "dangling link":
        target.write_text("precious")
    unfinished(place / "c.checkpoint")
    output = [] if name == "mlp_trained.h5" else ["--out", name]
    wrong = f"{name} exists: name another --out, or replace it with --overwrite"
    refused([*MLP, *output], wrong)
    refused(["--resume", "c.checkpoint", "--out", name], wrong)


def test_overwrite_replaces_the_output(train: Train, place: Path) -> None:
    (place / "mlp_trained.h5").write_text("old")
    assert train(*MLP, "--epochs", "1", "--overwrite")[0] == 0
    assert load_weights(place / "mlp_trained.h5").network == "mlp"


def test_an_output_created_meanwhile_is_not_overwritten(train: Train, place: Path) -> None:
    kept = f"cannot write mlp_trained.h5: File exists; .*: continue with --resume {CHECKPOINT}"
    with call_after_saving(lambda: (place / "mlp_trained.h5").write_text("precious")):
        check_failure(train(*MLP, "--epochs", "1"), kept)
    check_failure(train("--resume", CHECKPOINT, *OWN[:4]), kept)
    assert (place / "mlp_trained.h5").read_text() == "precious"
    assert train("--resume", CHECKPOINT, *OWN[:4], "--out", "other.h5")[0] == 0
    assert set(listing(place)) == {"images", "labels", "mlp_trained.h5", "other.h5"}


def test_nothing_is_overwritten_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "hardlink_to", Mock(side_effect=PermissionError(errno.EPERM, "not permitted")))
    for _ in range(2):
        with suppress(UserError), replace_atomically(tmp_path / "file", overwrite=False) as temporary:
            temporary.write_text("new" if not (tmp_path / "file").exists() else "newer")
    assert (tmp_path / "file").read_text() == "new" and list(listing(tmp_path)) == ["file"]


@pytest.mark.parametrize("link", [False, True])
def test_shipped_files_are_kept(link: bool, refused: Refused, refuses: Refuses, place: Path, release: Path) -> None:
    """The test's weights folder has no k7, but k7_fashion.h5 there would count as shipped."""
    for name in ("mlp_fashion.h5", "mlp_fashion_reference.h5", "SHA256SUMS", "k7_fashion.h5"):
        path = place / f"link to {name}" if link else Path("weights", name)
        if link:
            path.symlink_to(release / name)
        wrong = f"{path} is a file that the project ships in .*weights: name another file"
        refuses(["networks", "--json", path], f"--json {wrong}")
        for option in ("--out", "--json"):
            refused([*MLP, "--overwrite", option, str(path)], f"{option} {wrong}")


# --- one training at a time


def test_two_trainings_never_write_one_file(train: Train, place: Path, refused: Refused) -> None:
    """While one training runs, another one that shares any file is refused; the error names the first one's process."""
    (place / "sub").mkdir()
    first = begin(place)
    wait_for((place / CHECKPOINT).exists)
    first.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WNOWAIT)  # until then it may write
    (place / CHECKPOINT).rename(place / "own.checkpoint")  # so only the output is shared
    wrong = f"process {first.pid} is training into {{}}: wait for its end, or name another --out"
    refused(MLP, wrong.format("mlp_trained.h5"))
    refused(["--resume", "own.checkpoint", *OWN[:4], "--out", "sub/../mlp_trained.h5"], wrong.format(".*"))
    first.send_signal(signal.SIGCONT)
    wait_for((place / CHECKPOINT).exists)
    check_error(*train(*MLP), wrong.format(CHECKPOINT))
    check_error(*train("--resume", CHECKPOINT, *OWN[:4], "--out", "b.h5"), wrong.format(CHECKPOINT))
    first.kill()
    ended(first)
    for left in (place / CHECKPOINT, *place.glob("*.part")):  # perhaps incomplete
        left.unlink()
    assert train(*MLP, "--epochs", "1")[0] == 0
    assert set(listing(place)) == {"images", "labels", "sub", "own.checkpoint", "mlp_trained.h5"}


def test_a_checkpoint_changed_meanwhile_is_refused(train: Train, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another training may write the checkpoint after this one has read it and before it locks it."""
    with interrupt_after(1):
        assert train(*MLP, "--out", "a.h5")[0] == 2
    resumed = ["--resume", "a.h5.checkpoint", *OWN[:4]]
    for changed, options in (("a.h5.checkpoint", resumed), ("b.h5.checkpoint", [*MLP, "--out", "b.h5"])):

        def change_file(*_: Any, name: str = changed) -> None:
            with (place / name).open("ab") as file:
                file.write(b"more")

        with monkeypatch.context() as patch:
            patch.setattr(command, "check_workers", change_file)
            check_error(*train(*options), f"another training has just written or removed {changed}")


def test_an_unreadable_folder_is_an_error(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """``stat`` is replaced, because the superuser may read every folder."""
    real = Path.stat

    def stat(path: Path, **options: Any) -> Any:
        if "closed" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    refused("--resume closed/c.checkpoint", "cannot read closed/c.checkpoint: Permission denied")
    refused([*MLP, "--out", "closed/x.h5"], "--out closed/x.h5 cannot be written: Permission denied")
