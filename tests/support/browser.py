"""Open pages in a headless Chromium, where the machine has one: its console, the page after scripts ran, pictures."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
CONSOLE = re.compile(r":CONSOLE(?:[(:]\d+\)?)?\] (.*)")
# No network: a page that needs one shows it. Root may not use Chromium's sandbox, as in containers.
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--enable-logging=stderr"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=4000", "--disable-dev-shm-usage"),
)
TIMEOUT_S = 60


@dataclass(frozen=True)
class Opened:
    """A page after its scripts ran: the document as HTML, and the lines on its console."""

    html: str
    console: list[str]


def chromium() -> str:
    """Return the path of Chromium; skip the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    return found


def _run(page: Path, profile: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [chromium(), *FLAGS, f"--user-data-dir={profile}", *flags, page.resolve().as_uri()]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=True)


def opened(page: Path, profile: Path) -> Opened:
    """Open a page from its file. profile: an empty folder for Chromium's own files."""
    done = _run(page, profile, "--dump-dom")
    return Opened(done.stdout, CONSOLE.findall(done.stderr))


def pictured(page: Path, profile: Path, picture: Path, *, dark: bool = False, size: str = "1200,2400") -> None:
    """Write a picture of a page as PNG, for eyes."""
    mode = ("--blink-settings=preferredColorScheme=0",) if dark else ()
    _run(page, profile, f"--screenshot={picture}", f"--window-size={size}", *mode)
