"""List the languages, and judge each one's kernel on the processor by its interpreter and the project's oracle."""

import ast
import importlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from app.base.frozen import Frozen
from app.kernels import registry
from app.kernels.problems import ConvProblem
from app.kernels.variant import Variant
from app.lab.bench.oracle import expected_results
from app.lab.bench.tolerance import allowed_errors, rms
from app.lab.checking.cases import Case
from app.lab.peers.rounds import describe_error
from app.records.languages import Row

PROBLEM = ConvProblem(32, 12, 12, 64, 5, input_dtype="float16", dtype="float16", output_dtype="float16")
STEP = "tensor-core"  # the row that the languages repeat, with this tile
TILE = {"MT": 4, "NT": 2, "WARPS_M": 1, "WARPS_N": 4, "CK": 8}
INTERPRETERS = {"TRITON_INTERPRET": "1", "NUMBA_ENABLE_CUDASIM": "1", "JAX_PLATFORMS": "cpu"}


class Language(Frozen):
    """A language. module: its file in this folder. packages: what the file needs, by the names that pip knows.

    own_stream: its work runs on a stream that no other program can name, so that the host's clock times it.
    """

    name: str
    module: str
    packages: tuple[str, ...] = ()
    interpreter: bool = True
    own_stream: bool = False

    @property
    def path(self) -> Path:
        """Return the path of the language's file."""
        return Path(__file__).with_name(f"{self.module}.py")

    @property
    def hidden(self) -> str:
        """Return what the language hides: the paragraph of the file's docstring that begins with ``Hidden:``."""
        paragraphs = (ast.get_docstring(ast.parse(self.path.read_text("utf-8"))) or "").split("\n\n")
        return " ".join(next(one for one in paragraphs if one.startswith("Hidden: ")).split()).removeprefix("Hidden: ")

    @property
    def missing(self) -> str:
        """Return why the language cannot run here; empty if it can."""
        absent = " and ".join(name for name in self.packages if not _version(name))
        return f"not installed: {absent}" if absent else ""

    def bind(self, x: Any, w: Any, y: Any, stream: Any) -> Any:
        """Return what the file's ``bind`` returns: functions that enqueue y = conv(x, w), wait, and return y."""
        return importlib.import_module(f"{__package__}.{self.module}").bind(x, w, y, stream)

    def row(self, **found: Any) -> Row:
        """Return the language's row of the document with these fields, and without times for a missing language."""
        row = empty_row(self.name, self.path)
        row["hides"] = self.hidden
        row["versions"] = {name: text for name in self.packages if (text := _version(name))}
        row["reason"] = self.missing
        return Row(**(row | found))  # type: ignore[typeddict-item]


LANGUAGES = (
    Language("Triton", "triton_conv", ("triton", "torch")),
    Language("JAX Pallas", "pallas_conv", ("jax",), own_stream=True),
    Language("Numba CUDA", "numba_conv", ("numba", "numba-cuda")),
    Language("CuTe DSL", "cute_conv", ("nvidia-cutlass-dsl",), interpreter=False),
    Language("cuTile", "cutile_conv", ("cuda-tile", "nvidia-cuda-tileiras"), interpreter=False),
)


def empty_row(name: str, path: Path | None) -> Row:
    """Return a row without times. path: the kernel's file, if there is one."""
    return {
        "name": name,
        "versions": {},
        "lines": len(path.read_text("utf-8").splitlines()) if path else 0,
        "ms": None,
        "spread_ms": None,
        "clock": "events",
        "launch_us": None,
        "error": None,
        "hides": "",
        "wrong": False,
        "reason": "",
    }


def our_step() -> Variant:
    """Return the row of the registry that the languages repeat."""
    row = registry.find_variant("conv", STEP)
    assert row is not None
    return row


def interpret(language: Language, images: int) -> Row:
    """Run a language's kernel on the processor by its interpreter; return its row, judged element by element.

    Languages read ``INTERPRETERS`` from the environment when they are imported.
    """
    if language.missing or not language.interpreter:
        return language.row(reason=language.missing or "not judged: no interpreter, so it needs a card")
    case = Case(our_step(), PROBLEM, images)
    y = np.full((images, PROBLEM.maps, *PROBLEM.pooled_size), 0xFFFF, np.uint16).view(np.float16)  # NaN
    x = case.input_images.reshape(images, PROBLEM.channels, PROBLEM.height, PROBLEM.width)
    try:
        enqueue, wait, read = language.bind(x, case.parameters[0], y, None)
        enqueue()
        wait()
        wrong = case.describe_first_error([read()]) or _describe_rms(case, read())
    except Exception as failure:  # each language fails in its own way
        wrong = describe_error(failure)
    return language.row(wrong=wrong is not None, reason=wrong or "")


def _describe_rms(case: Case, y: np.ndarray) -> str | None:
    """Return what is wrong with the RMS of all errors, which a tolerance for each element alone does not bound."""
    found = expected_results(case.problem, case.input_images, *case.parameters)
    error, most = rms(y.reshape(found.exact.shape) - found.exact), allowed_errors(case.problem, found)[1]
    return None if error <= most else f"the RMS error is {error:.3g}, must be at most {most:.3g}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
