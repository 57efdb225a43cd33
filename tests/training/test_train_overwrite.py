"""``main.py train`` writes over nothing that is not its own, and only one at a time writes to a place."""

import errno
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.errors import UserError
from app.files.writing import replacing
from app.network.weights import load_weights
from app.training import command
from tests.support.bundle_for_tests import folder, release
from tests.support.shell import check_error, listing
from tests.support.training_for_tests import OWN, Train, begin, ended, unfinished, wait_for
from tests.training.test_train_command import CHECKPOINT, MLP, check_failure, interrupted_after

__all__ = ["folder", "release"]  # fixtures


# --- nothing written over


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "folder's link"])
@pytest.mark.parametrize("name", ["mlp_trained.h5", "own.h5"])
def test_what_exists_is_not_overwritten(kind: str, name: str, train: Train, place: Path) -> None:
    """Refused before anything is trained, the default name like any other, and with --resume."""
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
    before = listing(place)
    output = [] if name == "mlp_trained.h5" else ["--output", name]
    wrong = f"{name} exists: name another --output, or replace it with --overwrite"
    check_error(*train(*MLP, *output), wrong)
    check_error(*train("--resume", "c.checkpoint", "--output", name), wrong)
    assert listing(place) == before


def test_overwrite(train: Train, place: Path) -> None:
    (place / "mlp_trained.h5").write_text("old")
    assert train(*MLP, "--epochs", "1", "--overwrite")[0] == 0
    assert load_weights(place / "mlp_trained.h5").network == "mlp"
    (place / CHECKPOINT).write_text("precious")
    check_error(*train(*MLP, "--overwrite"), f"{CHECKPOINT} holds an unfinished training")


def test_what_comes_to_exist_is_not_overwritten(train: Train, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = command.save_checkpoint

    def save(*arguments: Any) -> None:
        real(*arguments)
        (place / "mlp_trained.h5").write_text("precious")

    kept = f"cannot write mlp_trained.h5: File exists; .*: go on with --resume {CHECKPOINT}"
    with monkeypatch.context() as patch:
        patch.setattr(command, "save_checkpoint", save)
        check_failure(train(*MLP, "--epochs", "1"), kept)
    check_failure(train("--resume", CHECKPOINT, *OWN[:4]), kept)
    assert (place / "mlp_trained.h5").read_text() == "precious"
    assert train("--resume", CHECKPOINT, *OWN[:4], "--output", "other.h5")[0] == 0
    assert set(listing(place)) == {"images", "labels", "mlp_trained.h5", "other.h5"}


def no_links(*_: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False])
def test_replacing_nothing(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On file systems without hard links, too."""
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", no_links)
    for _ in range(2):
        with suppress(UserError), replacing(tmp_path / "file", overwrite=False) as temporary:
            temporary.write_text("new" if not (tmp_path / "file").exists() else "newer")
    assert (tmp_path / "file").read_text() == "new" and list(listing(tmp_path)) == ["file"]


@pytest.mark.parametrize("link", [False, True])
def test_shipped_files_are_not_overwritten(
    link: bool, train: Train, place: Path, release: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder holds the networks lenet5 and mlp, so the last name is that of a file that would count as shipped."""
    for name in ("mlp_fashion.h5", "mlp_fashion_reference.h5", "SHA256SUMS", "k7_fashion.h5"):
        path = place / f"link to {name}" if link else Path("weights", name)
        if link:
            path.symlink_to(release / name)
        before = listing(place)
        capsys.readouterr()
        wrong = f"{path} is a file that the project ships in .*weights: name another file"
        for option in ("--output", "--json"):
            check_error(*train(*MLP, "--overwrite", option, str(path)), f"{option} {wrong}")
        check_error(main(["networks", "--json", str(path)]), *capsys.readouterr(), f"--json {wrong}")
        assert listing(place) == before


# --- one training at a time


def test_two_trainings_into_one_place(train: Train, place: Path) -> None:
    """The second is refused with the name of the first, whatever file they share; a killed one is not in the way."""
    (place / "sub").mkdir()
    first = begin(place)
    wait_for((place / CHECKPOINT).exists)
    first.send_signal(signal.SIGSTOP)
    (place / CHECKPOINT).rename(place / "own.checkpoint")  # as if the first epoch were not over yet
    wrong = f"process {first.pid} is training into {{}}: wait for its end, or name another --output"
    check_error(*train(*MLP), wrong.format("mlp_trained.h5"))
    check_error(*train("--resume", "own.checkpoint", *OWN[:4], "--output", "sub/../mlp_trained.h5"), wrong.format(".*"))
    first.send_signal(signal.SIGCONT)
    wait_for((place / CHECKPOINT).exists)
    check_error(*train(*MLP), wrong.format(CHECKPOINT))
    check_error(*train("--resume", CHECKPOINT, *OWN[:4], "--output", "b.h5"), wrong.format(CHECKPOINT))
    first.kill()
    ended(first)
    for left in (place / CHECKPOINT, *place.glob("*.part")):  # it may have been writing
        left.unlink()
    assert train(*MLP, "--epochs", "1")[0] == 0
    assert set(listing(place)) == {"images", "labels", "sub", "own.checkpoint", "mlp_trained.h5"}


def test_a_checkpoint_that_changed_meanwhile(train: Train, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between reading it and having the place alone."""
    with interrupted_after(1):
        assert train(*MLP, "--output", "a.h5")[0] == 2
    resumed = ["--resume", "a.h5.checkpoint", *OWN[:4]]
    for changed, options in (("a.h5.checkpoint", resumed), ("b.h5.checkpoint", [*MLP, "--output", "b.h5"])):

        def check(*_: Any, name: str = changed) -> None:
            with (place / name).open("ab") as file:
                file.write(b"more")

        with monkeypatch.context() as patch:
            patch.setattr(command, "check_workers", check)
            check_error(*train(*options), f"another training wrote or removed {changed} just now")


def test_a_folder_that_cannot_be_read(train: Train, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made up, for the superuser reads all."""
    real = Path.stat

    def stat(path: Path, **options: Any) -> Any:
        if "closed" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    check_error(*train("--resume", "closed/c.checkpoint"), "cannot read closed/c.checkpoint: Permission denied")
    check_error(*train(*MLP, "--output", "closed/x.h5"), "--output closed/x.h5 cannot be written: Permission denied")
