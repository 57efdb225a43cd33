"""Evaluate JavaScript by Node.js or Chromium; skip the test if the machine has neither."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import TIMEOUT_S, opened

ENGINES = ("node", "chromium")
ANY = "any"  # Node.js where the machine has it, else Chromium
REPORT = re.compile(r'<pre id="report">(.*?)</pre>', re.DOTALL)


def evaluate(engine: str, script: str, expression: str, folder: Path) -> Any:
    """Return the value of an expression, passed as JSON, after a script has run. folder: an empty folder."""
    node = shutil.which("node")
    if engine == "chromium" or (engine == ANY and node is None):
        page = f'<!DOCTYPE html><meta charset="utf-8"><title>x</title><script>{script}</script>'
        return evaluate_in_page(page, expression, folder)
    if node is None:
        pytest.skip("no Node.js on this machine (apt-get install nodejs)")
    (folder / "script.js").write_text(f"{script}\nconsole.log(JSON.stringify({expression}));", encoding="utf-8")
    done = subprocess.run([node, folder / "script.js"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def evaluate_in_page(html: str, expression: str, folder: Path, size: str = "1280,2400") -> Any:
    """Return the value of an expression, or of its promise, in a loaded page; check that the page's console is empty.

    size: width and height of the window.
    """
    told = f"Promise.resolve({expression}).then((found) => {{ report.textContent = JSON.stringify(found); }})"
    asked = f'const report = document.getElementById("report"); window.addEventListener("load", () => {{ {told}; }});'
    (folder / "page.html").write_text(f'{html}<pre id="report"></pre><script>{asked}</script>', encoding="utf-8")
    page = opened(folder / "page.html", folder / "profile", size=size)
    assert page.console == []
    (found,) = REPORT.findall(page.html)
    return json.loads(unescape(found))
