"""Where ``main.py train`` writes: nothing over its own files, no name found out to be bad after hours, nothing lost."""

import json
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest

from app import figures
from app.errors import UserError
from app.training import results
from tests.support.shell import check_error, listing
from tests.support.training_for_tests import Train, unfinished
from tests.training.test_train_command import CHECKPOINT, MLP, check_failure, interrupted_after


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ("--resume c.checkpoint --output c.checkpoint", "--output c.checkpoint", "--resume c.checkpoint"),
        ("--resume c.checkpoint --output sub/../c.checkpoint", "--output sub/../c.checkpoint", "--resume"),
        ("--resume c.checkpoint --output link", "--output link", "--resume c.checkpoint"),
        ("--resume mlp_trained.h5", "--output mlp_trained.h5", "--resume mlp_trained.h5"),
        ("--resume c.checkpoint --json c.checkpoint", "--json c.checkpoint", "--resume c.checkpoint"),
        ("--network mlp --output same.h5 --json same.h5", "--output same.h5", "--json same.h5"),
        ("--resume c.checkpoint --json c", "--output c", "--json c"),
        ("--network mlp --json mlp_trained.h5.checkpoint", "--json mlp_trained.h5.checkpoint", "the checkpoint"),
        ("--network mlp --output images", "--output images", "--data images"),
        ("--network mlp --json labels", "--json labels", "--labels labels"),
        ("--network mlp --output a --data a.checkpoint", "the checkpoint a.checkpoint", "--data a.checkpoint"),
    ],
)
def test_no_two_files_are_one(options: str, first: str, second: str, train: Train, place: Path) -> None:
    """A training whose weights went where its checkpoint is would remove them at its end."""
    unfinished(place / "c.checkpoint")
    (place / "mlp_trained.h5").write_bytes((place / "c.checkpoint").read_bytes())
    (place / "a.checkpoint").write_bytes((place / "images").read_bytes())
    (place / "sub").mkdir()
    (place / "link").symlink_to("c.checkpoint")
    before = listing(place)
    own = ["--data", "images"] if "--data" not in options else []
    check_error(*train(*options.split(), *own, "--labels", "labels"), rf"{first} is the same file as {second}")
    assert listing(place) == before


NAMES = ("", ".", "/", "..", "n" * 260)


@pytest.mark.parametrize(
    ("option", "name"),
    [*product(("--output", "--json"), NAMES), ("--output", "n" * 250)],
    ids=lambda text: f"{text[:3]}{len(text)}",
)
def test_names_that_cannot_be_written(option: str, name: str, train: Train, place: Path) -> None:
    """The checkpoint's is 11 letters longer than that of the weights."""
    before = listing(place)
    wrong = "File name too long" if len(name) > 200 else "it is not a regular file"
    check_error(*train(*MLP, option, name), f"{option} .* cannot be written: {wrong}; name a file")
    assert listing(place) == before


def test_the_longest_names(train: Train, place: Path) -> None:
    name = "n" * (255 - len(".checkpoint"))
    assert train(*MLP, "--epochs", "1", "--output", name, "--json", "j" * 255)[0] == 0
    assert set(listing(place)) == {"images", "labels", name, "j" * 255}


@pytest.mark.parametrize(
    ("option", "module", "function", "error", "wrong"),
    [
        ("--json", results, "write_json", UserError("no room"), "no room; "),
        ("--plot", results, "draw", UserError("no room"), "no room; "),
        ("--json", results, "write_json", KeyboardInterrupt(), "interrupted; "),
    ],
    ids=["json", "plot", "Ctrl-C"],
)
def test_figures_are_kept_until_they_are_written(
    option: str,
    module: ModuleType,
    function: str,
    error: BaseException,
    wrong: str,
    train: Train,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checkpoint goes last, and going on with it makes up for what is missing."""

    def fails(*_: object) -> None:
        raise error

    for name in ("check", "prepare"):
        monkeypatch.setattr(figures, name, lambda folder: None)  # without matplotlib, too
    with monkeypatch.context() as patch:
        patch.setattr(module, function, fails)
        kept = f"{wrong}{CHECKPOINT} holds the last whole epoch: go on with --resume {CHECKPOINT}"
        check_failure(train(*MLP, "--epochs", "2", option, "figures"), kept)
    weights = (place / "mlp_trained.h5").read_bytes()
    monkeypatch.setattr(results, "draw", lambda settings, progress, folder: folder / "curve")
    code, out, _ = train("--resume", CHECKPOINT, "--json", "log.json")
    assert code == 0 and "\nepoch " not in out
    assert (f"drew {place / 'figures' / 'curve'}\n" in out) == (option == "--plot")  # as it was begun
    assert len(json.loads((place / "log.json").read_text())["epochs"]) == 2
    assert set(listing(place)) == {"images", "labels", "log.json", "mlp_trained.h5"}
    assert (place / "mlp_trained.h5").read_bytes() == weights


def test_an_interrupted_training_needs_no_other_option(
    train: Train, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its images nor where its figures go; what is said again counts."""
    for name in ("check", "prepare"):
        monkeypatch.setattr(figures, name, lambda folder: None)
    monkeypatch.setattr(results, "draw", lambda settings, progress, folder: folder / "curve")
    own = ["--output", "a/b.h5", "--json", "log.json", "--plot", "plots"]
    (place / "a").mkdir()
    with interrupted_after(1):
        check_failure(train(*MLP, "--epochs", "3", *own), "go on with --resume a/b.h5.checkpoint")
    (place / "log.json").write_text("precious")
    wrong = r"/log.json, the --json of the checkpoint, exists: name a file for the figures with --json"
    check_error(*train("--resume", "a/b.h5.checkpoint"), wrong)
    monkeypatch.chdir(place / "a")
    with interrupted_after(2):
        hint = "--resume b.h5.checkpoint --output ../c.h5"
        check_failure(train("--resume", "b.h5.checkpoint", "--output", "../c.h5", "--json", "new.json"), hint)
    code, out, err = train(*hint.split())
    assert (code, err) == (0, "") and f"drew {place / 'plots' / 'curve'}\n" in out
    kept = {"data": "images", "labels": "labels", "plot": "plots", "json": "a/new.json"}
    words = " ".join(f"--{name} {place / path}" for name, path in kept.items())
    assert f"note: as b.h5.checkpoint was begun: {words}\n" in out
    assert json.loads((place / "a" / "new.json").read_text())["best_epoch"]
    assert (place / "log.json").read_text() == "precious"


def test_a_refused_training_leaves_no_folder_for_pictures(
    train: Train, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "check", lambda folder: None)  # without matplotlib, too
    check_error(*train(*MLP, "--images", "99999", "--plot", "plots"), "--images 99999 is more than")
    assert not (place / "plots").exists()
