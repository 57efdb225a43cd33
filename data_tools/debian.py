"""Unpack a Debian package without installing it and without root, by the system's apt-get."""

import os
import shutil
import subprocess
from pathlib import Path

TIMEOUT_SECONDS = 180.0

# One attempt, short waits; root's apt must not switch to a user that cannot see our directory.
_BOTH = """\
Acquire::Retries "0";
Acquire::http::Timeout "10";
Acquire::https::Timeout "10";
APT::Sandbox::User "root";
"""
# Private lists, so that neither root nor the system's state is needed; no system hooks.
_PRIVATE = """\
Dir::State "{state}";
Dir::State::Lists "{state}/lists";
Dir::Cache "{cache}";
Acquire::Languages "none";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""


class DebianError(Exception):
    """The package is not available; the text is the reason in one line."""


def unpack(package: str, directory: Path) -> Path:
    """Download ``package`` and unpack it below ``directory``; return the root of its tree.

    It uses the system's package lists, and if that fails, fresh private lists. apt-get and dpkg-deb write only below
    ``directory``, an absolute path that the caller removes. Raises DebianError.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise DebianError(f"{tool} is not on PATH (not a Debian-like system)")
    config = directory / "apt.conf"
    apt = ["apt-get", "--quiet", f"--config-file={config}"]
    config.write_text(_BOTH)
    try:
        _run([*apt, "download", package], directory)
    except DebianError:
        state, cache = directory / "state", directory / "cache"
        for path in (state / "lists" / "partial", cache / "archives" / "partial"):
            path.mkdir(parents=True)
        config.write_text(_BOTH + _PRIVATE.format(state=state, cache=cache))
        _run([*apt, "update"], directory)
        _run([*apt, "download", package], directory)
    archive = next(directory.glob("*.deb"), None)
    if archive is None:
        raise DebianError("apt-get download left no package file")
    tree = directory / "tree"
    _run(["dpkg-deb", "-x", str(archive), str(tree)], directory)
    return tree


def _run(command: list[str], directory: Path) -> None:
    log = directory / "log"
    # Write output to a file: with a pipe we would wait for grandchildren that outlive the time-out.
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                env={**os.environ, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise DebianError(f"{_format_command(command)} took more than {TIMEOUT_SECONDS:g} s") from error
    if done.returncode != 0:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        told = [line for line in lines if line.startswith("E:")] or lines or [f"exit code {done.returncode}"]
        raise DebianError(f"{_format_command(command)}: {told[-1]}")


def _format_command(command: list[str]) -> str:
    return " ".join(word for word in command if not word.startswith("-"))
