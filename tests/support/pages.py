"""Check that the elements of pages nest; open pages in Chromium, and evaluate JavaScript there or by Node.js."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest


class Nesting(HTMLParser):
    """Parser that checks that every element except ``VOID`` ones is closed in order. open: the enclosing elements.

    A subclass must set its attributes before it calls ``__init__``, which parses the whole page.
    """

    VOID: tuple[str, ...] = ()

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
CONSOLE = re.compile(r":CONSOLE(?:[(:]\d+\)?)?\] (.*)")
# No network: a page that needs one shows it. Virtual time runs on while a picture is decoded: there is plenty of it.
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--enable-logging=stderr"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=200000", "--disable-dev-shm-usage"),
)
TIMEOUT_S = 60


@dataclass(frozen=True)
class Opened:
    """A page after its scripts have run: the document as HTML, and the lines on its console."""

    html: str
    console: list[str]


def chromium() -> str:
    """Return the path of Chromium; skip the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    return found


def opened(page: Path, profile: Path) -> Opened:
    """Return a page, opened from its file. profile: an empty folder for Chromium's files."""
    flags = (*FLAGS, f"--user-data-dir={profile}", "--dump-dom", "--window-size=1280,2400")
    command = [chromium(), *flags, page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=True)
    return Opened(done.stdout, CONSOLE.findall(done.stderr))


REPORT = re.compile(r'<pre id="report">(.*?)</pre>', re.DOTALL)


def evaluate(script: str, expression: str, folder: Path) -> Any:
    """Return the value of an expression, passed as JSON, after a script has run. folder: an empty folder.

    By Node.js where the machine has it, which starts sooner, else in Chromium.
    """
    node = shutil.which("node")
    if node is None:
        page = f'<!DOCTYPE html><meta charset="utf-8"><title>x</title><script>{script}</script>'
        return evaluate_in_page(page, expression, folder)
    (folder / "script.js").write_text(f"{script}\nconsole.log(JSON.stringify({expression}));", encoding="utf-8")
    done = subprocess.run([node, folder / "script.js"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def evaluate_in_page(html: str, expression: str, folder: Path) -> Any:
    """Return the value of an expression, or of its promise, in a loaded page; check that the page's console is empty.

    folder: an empty folder.
    """
    told = f"Promise.resolve({expression}).then((found) => {{ report.textContent = JSON.stringify(found); }})"
    asked = f'const report = document.getElementById("report"); window.addEventListener("load", () => {{ {told}; }});'
    (folder / "page.html").write_text(f'{html}<pre id="report"></pre><script>{asked}</script>', encoding="utf-8")
    page = opened(folder / "page.html", folder / "profile")
    assert page.console == []
    (found,) = REPORT.findall(page.html)
    return json.loads(unescape(found))
