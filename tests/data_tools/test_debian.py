"""Getting the data from a Debian package, with fake apt-get and dpkg-deb."""

import time
from pathlib import Path

import pytest

from app.errors import UserError
from data_tools import debian
from data_tools.fashion_mnist import open_split
from data_tools.idx import write_idx
from tests.support.tiny_fashion import IMAGES, NAMES, check_loaded, check_only_the_files, names, write

APT_GET = """#!/bin/sh
echo "$@" >> {log}
config=${{2#--config-file=}}
case "$3" in
update) [ -d "${{config%/*}}/state/lists/partial" ] && [ -d "${{config%/*}}/cache/archives/partial" ] || exit 1
  /bin/grep -q 'Dir::State::Lists ".*/state/lists";' "$config" && : > {updated} ;;
download) if [ -e {updated} ]; then : > "$4_1.0_all.deb"; else echo "E: Unable to locate package $4"; exit 100; fi ;;
esac
"""
DPKG_DEB = """#!/bin/sh
/bin/mkdir -p "$3/usr/share/datasets/fashion-mnist"
/bin/cp {source}/* "$3/usr/share/datasets/fashion-mnist"
"""


def install(tmp_path: Path, name: str, script: str) -> None:
    path = tmp_path / "bin" / name
    path.write_text(script)
    path.chmod(0o755)


@pytest.fixture
def debian_tools(cache: Path, tmp_path: Path) -> Path:
    """Fake apt-get and dpkg-deb; apt-get knows the package while the file returned exists."""
    updated = tmp_path / "updated"
    install(tmp_path, "apt-get", APT_GET.format(log=tmp_path / "log", updated=updated))
    install(tmp_path, "dpkg-deb", DPKG_DEB.format(source=write(tmp_path / "source")))
    return updated


@pytest.mark.parametrize("known", [True, False], ids=["in the system's lists", "after a private update"])
def test_debian_package(cache: Path, debian_tools: Path, tmp_path: Path, known: bool) -> None:
    if known:
        debian_tools.touch()
    check_loaded()
    check_only_the_files(cache)
    commands = [line.split()[2] for line in (tmp_path / "log").read_text().splitlines()]
    assert commands == (["download"] if known else ["download", "update", "download"])


def test_debian_package_with_wrong_content(cache: Path, debian_tools: Path, tmp_path: Path) -> None:
    debian_tools.touch()
    write_idx(tmp_path / "source" / f"{NAMES[0]}.gz", IMAGES[::-1].copy())
    with pytest.raises(UserError, match=f"no good copy of {NAMES[0]}"):
        open_split("test")
    assert names(cache) == [f"{NAMES[1]}.gz"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'W: odd'; echo 'E: Unable to fetch'; echo done; exit 100", "apt-get download .*: E: Unable to fetch"),
        ("exit 3", "exit code 3"),
        ("/bin/sleep 30", "took more than 0.2 s"),
        ("exit 0", "left no package file"),
    ],
)
def test_debian_failures(
    cache: Path, debian_tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setattr(debian, "TIMEOUT_SECONDS", 0.2)
    install(tmp_path, "apt-get", f'#!/bin/sh\n[ "$3" = update ] && exit 0\n{script}\n')
    start = time.monotonic()
    with pytest.raises(UserError, match=reason):
        open_split("test")
    assert time.monotonic() - start < 10
    assert names(cache) == []
