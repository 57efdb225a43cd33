"""Define the exception for errors that users can correct, and the remedies in its text: similar names, pip commands."""

import difflib
import shlex
import sys
from collections.abc import Iterable

# The extras of pyproject.toml and their packages.
EXTRAS: dict[str, tuple[str, ...]] = {
    "cuda": ("nvidia-cuda-nvrtc-cu12>=12.8", "nvidia-cuda-runtime-cu12>=12.8"),
    "interchange": ("onnx>=1.16", "onnxruntime>=1.18", "safetensors>=0.4"),
    "cpu": ("onnx>=1.16", "onnxruntime>=1.18"),
    "torch": ("torch>=2.6",),
    "pictures": ("Pillow>=11.3",),
    "parquet": ("pyarrow>=15",),
    "power": ("nvidia-ml-py>=12.535",),
    "nccl": ("nvidia-nccl-cu12>=2.18.1,<3",),
    "cluster": ("distributed>=2026.8",),
    "docs": ("cogapp>=3.4", "tabulate>=0.9", "jinja2>=3.1", "pygments>=2.17", "markdown-it-py>=3"),
    "bench": ("nvidia-cublas-cu12>=12.8",),
    "peers": ("torch>=2.11", "jax[cuda13]>=0.8"),
}


class UserError(Exception):
    """An error that the user can correct. The program prints ``error: …`` in one line and exits with code 2.

    The text gives the cause, the place and the remedy; each further argument is a further line. Modules raise it for
    bad options, files, data, weights or devices. Any other exception that reaches the top is a bug. File names in the
    text may contain any characters: ``str`` escapes the unprintable ones.
    """

    def __str__(self) -> str:
        return "\n".join(escape_unprintable(str(line)) for line in self.args)


def escape_unprintable(text: str) -> str:
    r"""Return the text with every unprintable character escaped, newlines too: ``\n``, ``\x1b``, ``\udcff``."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def choices_hint(word: str, known: Iterable[str]) -> str:
    """Return ``choose one of …`` with the known names, then the one nearest to ``word`` if one is near."""
    names = [*known]
    return f"choose one of {', '.join(names)}{did_you_mean_hint(word, names)}"


def print_to_stderr(text: str) -> None:
    """Print one line on standard error, with unprintable characters escaped."""
    print(escape_unprintable(text), file=sys.stderr)


def did_you_mean_hint(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the known name nearest to ``word``, or ``""``; leading hyphens do not count."""
    names = {name.lstrip("-").lower(): name for name in known}
    typed = word.lstrip("-").lower()
    begun = [name for name in names if typed and name.startswith(typed)]
    near = begun or difflib.get_close_matches(typed, names, n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""


def pip_install_command(extra: str) -> str:
    """Return the pip command that installs an extra's packages; this program need not be installed as a package."""
    return f"pip install {' '.join(map(shlex.quote, EXTRAS[extra]))}"
