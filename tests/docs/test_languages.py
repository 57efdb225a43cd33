"""Test docs/languages: kernels run by their interpreters, checks, and the document; on a GPU the whole command."""

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.files.writing import json_text
from app.lab.bench.compiling import WrongResult
from app.lab.bench.oracle import expected_results
from app.main_job.result import Timing
from app.records.languages import Languages, Row
from docs.generate.__main__ import LANGUAGES as DOCUMENT
from docs.generate.figures import LANGUAGES as STORED
from docs.generate.figures import Figures
from docs.languages import __main__ as command
from docs.languages import compare, on_card
from docs.languages.compare import LANGUAGES, PROBLEM, Language, empty_row, interpret
from docs.languages.text import as_text
from tests.docs.conftest import write_document
from tests.support.peers_for_tests import CARD as SOME_CARD
from tests.support.schemas import mistakes

ROOT = Path(__file__).parents[2]
SLOW = {"numba": "1"}  # package → --images, where the interpreter takes half a minute for one image


def run_languages(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "docs.languages", *map(str, arguments)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=550)


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_a_language_has_one_short_file_with_bind(language: Language) -> None:
    text = language.path.read_text()
    assert len(text.splitlines()) <= 100 and language.hidden
    assert "bind" in {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_the_interpreted_kernel_agrees_with_the_oracle(language: Language) -> None:
    if language.missing or not language.interpreter:
        pytest.skip(language.missing or "the language has no interpreter")
    done = run_languages("--interpret", "--only", language.packages[0], "--images", SLOW.get(language.packages[0], "3"))
    assert (done.returncode, done.stdout.split("\n\n")[0].split()) == (0, [*language.name.split(), "right"])


def spoiled_bind(name: str) -> Callable[..., Any]:
    """Return a function like ``Language.bind`` that computes y in NumPy and then makes the error ``name`` in it."""

    def bind(x: np.ndarray, w: np.ndarray, y: np.ndarray, stream: object) -> Any:
        def enqueue() -> None:
            assert np.isnan(y).all(), "poisoned"
            exact = expected_results(PROBLEM, x.reshape(len(x), -1), w.ravel()).exact
            if name != "writes nothing":
                y[:] = exact.reshape(y.shape)
            if name == "one value":
                y[-1, 13, 5, 7] += 0.25
            if name == "all a little":
                y[:] += np.float16(0.02)
            if name == "crash":
                raise RuntimeError("out of\nresources")

        return enqueue, lambda: None, lambda: y

    return bind


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("right", ""),
        ("writes nothing", "nothing was written"),
        ("one value", "image 2, map 13, row 5, column 7: found "),
        ("all a little", "the RMS error is 0.0"),
        ("crash", "out of resources"),
    ],
)
def test_interpret_reports_wrong_results(monkeypatch: pytest.MonkeyPatch, name: str, said: str) -> None:
    monkeypatch.setattr(Language, "bind", lambda _, *arguments: spoiled_bind(name)(*arguments))
    row = interpret(Language("Some", "triton_conv"), 3)
    assert row["wrong"] == bool(said) and said in row["reason"] and bool(row["reason"]) == bool(said)


def test_a_language_that_is_not_installed_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "INTERPRETERS", {})
    monkeypatch.setattr(command, "LANGUAGES", (Language("Some", "triton_conv", ("no_such_package",)),))
    monkeypatch.setattr(sys, "argv", ["languages", "--interpret"])
    assert command.main() == 0
    assert "  Some  not installed: no_such_package\n" in capsys.readouterr().out


class ArrayWithSet(np.ndarray):
    """A NumPy array with the method ``set`` of CuPy's arrays."""

    def set(self, values: np.ndarray) -> None:
        self[:] = values


class FakeTrial:
    """Replaces ``Trial`` and needs no GPU: ``check_action`` returns or raises ``verdict``; each time is 1 ms."""

    def __init__(self, images: int, verdict: float | WrongResult) -> None:
        rng = np.random.default_rng(0)
        self.problem, self.images, self.verdict = PROBLEM, images, verdict
        self.x = rng.standard_normal(images * 32 * 144).astype(np.float16)
        self.parameters = [rng.standard_normal((32, 5, 5, 64)).astype(np.float16)]
        self.outputs = {"y": np.zeros(images * 4096, np.float16).view(ArrayWithSet)}
        stream = SimpleNamespace(synchronize=lambda: None)
        self.clock = SimpleNamespace(stream=stream, time_enqueued_work=lambda enqueue, *_: Timing((1.0,) * 20))

    def check_action(self, action: Callable[[], None]) -> float:
        self.outputs["y"].fill(np.nan)
        action()
        assert not np.isnan(self.outputs["y"]).any()
        if isinstance(self.verdict, WrongResult):
            raise self.verdict
        return self.verdict


@pytest.mark.parametrize("own_stream", [False, True])
def test_all_batches_are_checked_before_a_language_is_timed(monkeypatch: pytest.MonkeyPatch, own_stream: bool) -> None:
    def bind(_: Language, x: np.ndarray, w: np.ndarray, y: np.ndarray, stream: object) -> Any:
        assert x.shape[1:] == (32, 12, 12) and w.shape == (32, 5, 5, 64) and y.shape[1:] == (64, 8, 8) and stream
        result = y.copy() if own_stream else y
        return lambda: result.fill(0), lambda: None, lambda: np.asarray(result) if own_stream else y.tolist()

    monkeypatch.setattr(Language, "bind", bind)
    monkeypatch.setattr(on_card.cupy, "asarray", np.asarray)
    for name in ("ROUNDS", "CALLS", "PASSES"):
        monkeypatch.setattr(on_card, name, 2)
    language = Language("Some", "triton_conv", own_stream=own_stream)
    trials: list[Any] = [FakeTrial(1, 0.25), FakeTrial(3, 0.5), FakeTrial(2, 0.125)]
    row = on_card._time_language(language, trials)
    assert row["error"] == 0.5 and row["ms"] and row["launch_us"] and not row["reason"], row
    assert row["clock"] == ("host" if own_stream else "events") and (own_stream or row["ms"] == 1)
    trials[1].verdict = WrongResult("wrong: image 1")
    row = on_card._time_language(language, trials)
    assert row["wrong"] and row["reason"] == "wrong: image 1" and row["ms"] is None


def make_row(name: str, **found: Any) -> Row:
    return Row(**(empty_row(name, None) | found))  # type: ignore[typeddict-item]


def make_document() -> Languages:
    times: dict[str, Any] = {"ms": 0.5, "spread_ms": 0.01, "launch_us": 4.25, "error": 0.125, "lines": 234}
    return {
        "schema": "lenet5-inference/languages/1",
        "date": "2026-01-01 00:00 UTC",
        "command": "python -m docs.languages",
        "device": SOME_CARD,  # type: ignore[typeddict-item]
        "problem": "conv channels=32",
        "tile": compare.TILE,
        "images": 10_000,
        "batches": [1, 7],
        "rows": [
            make_row("CUDA C++, tensor-core", **times),
            make_row(
                "Some", **times | {"ms": 1.5, "clock": "host", "hides": "threads " * 30, "versions": {"some": "1.2"}}
            ),
            make_row("Other", reason="not installed: other", hides="nothing"),
            make_row("Third", wrong=True, reason="image 0, element 1 is 2, must be 3"),
        ],
    }


def test_text_and_tables_of_a_languages_document(tmp_path: Path) -> None:
    found = make_document()
    assert not mistakes(json.loads(json_text(found)))
    text = as_text(found)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "1.5000*" in text and " 3.00 " in text and "WRONG: image 0" in text and "not installed: other" in text
    assert DOCUMENT.render_block("languages", Figures(tmp_path)).startswith("Not measured yet: run `python -m docs.")
    write_document(dict(found), tmp_path / STORED)
    made = DOCUMENT.render_block("languages", Figures(tmp_path))
    assert "Some Card, 2026-01-01 00:00 UTC, some 1.2" in made and "1.5000*" in made
    assert "No times: Other. Reason: not installed: other." in made
    assert all(language.path.name in DOCUMENT.render_block("files", Figures(tmp_path)) for language in LANGUAGES)


def test_help_and_wrong_options_of_the_languages_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["languages", "--help"])
    with pytest.raises(SystemExit):
        command.main()
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())
    for words, said in ((["--interpret", "--json", "-"], "measures nothing"), (["--only", "tritom"], "triton")):
        monkeypatch.setattr(sys, "argv", ["languages", *words])
        with pytest.raises(UserError, match=said):
            command.main()


@pytest.mark.gpu
@pytest.mark.alone
def test_languages_that_load_are_right_on_a_gpu(tmp_path: Path) -> None:
    done = run_languages("--batch", 1000, "--json", tmp_path / "languages.json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "languages.json").read_text())
    assert not mistakes(found)
    rows = found["rows"][2:]
    for made, language in zip(rows, LANGUAGES, strict=True):
        if language.missing:
            assert made["reason"] == language.missing
        else:  # it may fail to load: Numba does with some versions of NumPy
            assert made["ms"] or (made["reason"] and not made["wrong"])
    assert any(made["ms"] for made in rows) or all(language.missing for language in LANGUAGES)


COMPILERS = {
    "triton": """
import triton
from triton.backends.compiler import GPUTarget
from docs.languages.triton_conv import WARPS, conv
sizes = dict(channels=32, height=12, width=12, maps=64, kernel=5)
types = {**dict.fromkeys("xwy", "*fp16"), **dict.fromkeys(sizes, "constexpr")}
source = triton.compiler.ASTSource(fn=conv, signature=types, constexprs=sizes)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": WARPS})
print(made.asm["ptx"].count("mma"))
""",
    "jax": """
import jax
from docs.languages.pallas_conv import convolve
x, w, y = (jax.ShapeDtypeStruct(shape, "float16") for shape in ((7, 4608), (25, 64, 32), (7, 64, 64)))
traced = convolve.trace(x, w, y, sizes=(32, 12, 12, 64, 5), interpret=False)
print(traced.lower(lowering_platforms=("cuda",)).as_text().count("xla.gpu.triton"))
""",
    "numba": """
from numba import cuda, types
from docs.languages.numba_conv import conv
arrays = tuple(types.Array(kind, 3, "C") for kind in (types.uint16, types.uint32, types.float16))
code = cuda.compile_ptx(conv.py_func, arrays, cc=(9, 0))[0]
assert ".local" not in code, "sums are in registers"
print(code.count("mma.sync"))
""",
    "nvidia-cutlass-dsl": """
import os, pathlib, tempfile
os.environ["CUTE_DSL_ARCH"], os.environ["CUTE_DSL_KEEP_PTX"] = "sm_90a", "1"
os.environ["CUTE_DSL_DUMP_DIR"] = folder = tempfile.mkdtemp()
import cutlass
from cutlass import cute
from cutlass.cute import runtime
from docs.languages.cute_conv import launch
shapes = (7, 32, 144), (25, 64, 32), (7, 64, 64)
arrays = [runtime.make_fake_compact_tensor(cutlass.Float16, shape, stride_order=(2, 1, 0)) for shape in shapes]
cute.compile(launch, *arrays, runtime.make_fake_stream())
print(next(pathlib.Path(folder).glob("*.ptx")).read_text().count("mma.sync"))
""",
    "cuda-tile": """
import io
from cuda import tile
from cuda.tile import compilation
from docs.languages.cutile_conv import conv
strides = dict(stride_lower_bound_incl=0, stride_constant=(None, None, 1))
alone = dict(alias_groups=(), may_alias_internally=False)
array = compilation.ArrayConstraint(tile.float16, 3, index_dtype=tile.int32, **strides, **alone)
convention = compilation.CallingConvention.cutile_python_v1()
made, signature = io.BytesIO(), compilation.KernelSignature([array] * 3, convention)
compilation.export_kernel(conv, [signature], made, gpu_code="sm_90", output_format="cubin")
print(len(made.getvalue()))
""",
}


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_a_language_compiles_for_a_gpu_without_one(language: Language) -> None:
    """Compile to PTX; cuTile to machine code, and Pallas to the form that XLA compiles on a GPU."""
    if language.missing:
        pytest.skip(language.missing)
    words = [sys.executable, "-c", COMPILERS[language.packages[0]]]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and int(done.stdout) > 0, done.stderr
