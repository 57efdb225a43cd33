"""Test ``ladder``: with stored figures without a GPU, and with a replaced GPU, in which order it measures steps."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.base.errors import UserError
from app.cli import main
from app.cuda.device import why_no_gpu
from app.kernels.registry import variants
from app.lab.bench.cases import SPARSE_FILTERS
from app.lab.bench.results import OURS, Result
from app.ladder.card import Card
from app.ladder.command import as_text
from app.ladder.counting import PARTS
from app.ladder.lessons import LADDERS, all_steps
from app.ladder.pixel_tiles import draw_global_window
from app.ladder.stored import load_stored_card, stored_kernels
from tests.support.peers_for_tests import CARD
from tests.support.schemas import check_described, check_widths, mistakes

WITHOUT_GPU = pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")


def run_ladder(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run ``ladder`` with options; return its exit code and its JSON document, which must fit its schema."""
    code = main(["ladder", *options, "--json", str(folder / "ladder.json")])
    document = json.loads((folder / "ladder.json").read_text(encoding="utf-8"))
    check_described(document)
    return code, document


@WITHOUT_GPU
def test_without_a_gpu_ladder_shows_stored_figures_and_writes_their_pages(
    tmp_path: Path, card: Card, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = run_ladder(tmp_path, "--pages", str(tmp_path / "pages"), "--batch", "500")
    assert code == 0 and not mistakes(document) and document["tables"] == card.benches["lenet5"]["tables"]
    text = capsys.readouterr().out
    assert "figures are stored, measured on an NVIDIA H100" in " ".join(text.split())
    assert "--batch 500 is for a GPU, without effect" in " ".join(text.split())
    check_widths(as_text, document)
    # The order is that of the ladders, and the predictions are those of the pages.
    assert [row["name"] for row in document["steps"]] == [
        row.name for name in LADDERS for row in variants(name) if row.taught
    ]
    for step, row in zip(all_steps(), document["steps"], strict=True):
        own = [layer for layer in card.layers(step) if layer.network == "lenet5"]
        assert [(one["predicted_ms"], one["ms"]) for one in row["layers"]] == [(a.prediction.ms, a.ms) for a in own]
    # The pages are those of make docs, except for the command that made them.
    pages = {path.name: path for path in (tmp_path / "pages").rglob("*") if path.is_file()}
    assert pages.keys() == {path.name for path in site.rglob("*") if path.is_file()}
    assert pages["conv-direct.html"].read_text("utf-8") == (site / "conv-direct.html").read_text("utf-8").replace(
        "make docs", "python main.py ladder --network lenet5 --pages DIR"
    )


@WITHOUT_GPU
@pytest.mark.parametrize("network", ["lenet5", "k7"])
def test_loop_mark_is_explained_only_if_a_row_has_it(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder", "--network", network]) == 0
    text = capsys.readouterr().out
    assert ("(loop):" in text) == bool(re.search(r"\(loop\)$", text, re.MULTILINE))


def test_stored_figures_depend_on_network_and_architecture() -> None:
    assert [*load_stored_card("k7").benches] == ["k7"] and stored_kernels("sm_75") == {} != stored_kernels("sm_90a")
    with pytest.raises(UserError, match=r"figures are stored of lenet5, .*, not of mlp"):
        load_stored_card("mlp")


class FakeTrial:
    """Replaces ``Trial`` and needs no GPU. made: (problem, images) of each trial that was created."""

    made: list[tuple[Any, int]]

    def __init__(self, problem: Any, images: int, _: str) -> None:
        self.problem = problem
        self.made.append((problem, images))


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace all functions of ``ladder`` that need a GPU; return a list that gets the names of measured kernels."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.lab.bench import compiling
    from app.ladder import measuring

    measured: list[str] = []

    def time_variant(_: Any, trial: FakeTrial, row: Any) -> Result:
        measured.append(row.name)
        wrong = row.name == "unrolled"
        found = Result(OURS, row.name, trial.problem.dtype, row.step, instructions=row.instructions, wrong=wrong)
        found = replace(found, note=SPARSE_FILTERS if row.sparse else "")
        return Result(**{**vars(found), "reason": "wrong: image 0"} if wrong else {**vars(found), "ms": 2.0, "runs": 9})

    FakeTrial.made = []
    monkeypatch.setattr("app.cuda.device.why_no_gpu", lambda: None)
    monkeypatch.setattr("app.cuda.device.describe_gpu", lambda: CARD)
    monkeypatch.setattr(measuring, "Trial", FakeTrial)
    monkeypatch.setattr(measuring.ItemTimer, "time_variant", time_variant)
    peaks = {"tflops": {"float32": 50.0, "float16": 600.0}, "gbytes_per_s": 3000.0}
    monkeypatch.setattr(measuring.peak, "measure_peaks", lambda _: peaks)
    monkeypatch.setattr(compiling, "compile_kernel", lambda *_: b"")
    return measured


def test_ladder_measures_steps_in_order(
    fake_gpu: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = run_ladder(tmp_path, "--batch", "500", "--pages", str(tmp_path / "pages"))
    text = " ".join(capsys.readouterr().out.split())
    assert code == 1 and "wrong: image 0" in text and "The ladder on lenet5, 500 images" in text
    assert [*dict.fromkeys(fake_gpu)] == [*dict.fromkeys(step.row.name for step in all_steps())]
    assert len(fake_gpu) == 2 * len(all_steps())  # two convolutions, two products
    assert len({problem for problem, _ in FakeTrial.made if getattr(problem, "sparse", False)}) == 1  # of conv2
    assert {images for _, images in FakeTrial.made} == {500} and len(FakeTrial.made) < len(fake_gpu) / 3
    assert re.search(r"21 warpgroup +– +conv2 alone: 2\.0000", text)  # it does not compute conv1
    assert document["notes"] == ["warpgroup-sparse was timed with 2:4 sparse filters; no other time depends on weights"]
    direct = next(row for row in document["steps"] if row["name"] == "direct")
    assert direct["ms"] == 4.0 and direct["predicted_ms"] > 0 and direct["bound"] in PARTS
    assert next(row for row in document["steps"] if row["name"] == "unrolled")["ms"] is None
    page = (tmp_path / "pages" / "conv-direct.html").read_text(encoding="utf-8")
    assert str(CARD["name"]) in page and "500 images" in page


@pytest.mark.gpu
def test_ladder_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = run_ladder(tmp_path, "--batch", "300", "--pages", str(tmp_path / "pages"))
    assert code == 0 and document["images"] == 300
    assert all(row["ms"] or row["reason"] for row in document["steps"])
    assert (tmp_path / "pages" / "index.html").is_file()


def test_global_window_drawing_shows_the_size_of_the_read_input() -> None:
    drawing = draw_global_window(3, 4, kernel=5, stride=2, threads=32, taps="global memory")
    assert "input channel 9 × 11, global memory" in drawing.svg() and "output map 3 × 4" in drawing.svg()
