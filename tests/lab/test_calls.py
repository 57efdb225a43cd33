"""``python -m app.lab.calls``: how it measures, on the CPU and with made-up peers; what it prints; PyTorch's ways."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.lab.calls import measure as measuring
from app.lab.calls.__main__ import main
from app.lab.calls.callers import (
    ARRAYS,
    CARD,
    COMPILE,
    EAGER,
    KINDS,
    ORDINARY,
    OURS,
    PINNED,
    Caller,
    Kind,
    TorchPool,
    call_arrays,
    parse_kinds,
)
from app.lab.calls.measure import Setup, measure_kind
from app.lab.calls.text import as_text
from app.network.definitions import LENET5
from docs.generate.__main__ import API
from docs.generate.figures import CALLS, FIGURES, Figures
from tests.docs.conftest import write_document
from tests.support.networks_for_tests import random_graph, random_images

pytestmark = pytest.mark.filterwarnings("ignore:.*inductor.*")
COUNT = 40
IMAGES = random_images(LENET5, COUNT)
LABELS = (IMAGES.sum((1, 2, 3)) % 10).astype(np.uint8)
ONE, TEN = Kind("1", 1, "fp16", ORDINARY), Kind("10", 10, "fp32x", PINNED)


def fake(diary: list[int], spoils: float = np.inf) -> Caller:
    """Return a caller that answers as LABELS and keeps its images' sums. spoils: it changes labels after this call."""

    def call(images: Any) -> np.ndarray:
        images = images.reshape(-1, 28 * 28)
        diary.append(int(images[0].sum()))
        return ((images.sum(1) + (len(diary) > spoils)) % 10).astype(np.uint8)

    return Caller(call, lambda: None)


class Pool(TorchPool):
    """Peers by (engine, precision): their makers."""

    def __init__(self, **found: Mapping[str, Callable[[], Caller]]) -> None:
        self.found = found

    def caller_factories(self, kind: Kind, engine: str, precision: str) -> Mapping[str, Callable[[], Caller]]:
        return self.found.get(f"{engine} {precision}", {"plain": partial(fake, [])})


def setup(ours: Callable[[Kind], Caller], pool: TorchPool | None = None) -> Setup:
    def no_card(array: np.ndarray) -> Any:
        raise UserError("PyTorch is not installed")

    return Setup(IMAGES, lambda _: LABELS, ours, pool or Pool(), np.copy, no_card, lambda: None)


@pytest.fixture(autouse=True)
def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TURN_MS": 0.0, "LEAST_CALLS": 12, "WARMUP": 1, "TRIES": 1, "UNTIMED": 1}.items():
        monkeypatch.setattr(measuring, name, value)


STORED = json.loads((FIGURES / CALLS).read_text(encoding="utf-8"))


def document(*rows: Any) -> Any:
    """The stored document, with other rows."""
    return STORED | {"rows": [*rows]}


def test_images_change_from_call_to_call() -> None:
    diary: list[int] = []
    row = measure_kind(ONE, setup(lambda _: fake(diary)), 2, lambda _: None)
    assert len(set(diary)) == ARRAYS and all(one != other for one, other in pairwise(diary))
    assert [caller["ms"]["runs"] for caller in row["callers"] if caller["ms"]] == [24, 24, 24]
    assert not row["wrong"] and row["ratio"] is not None and row["best"] in (EAGER, COMPILE)
    assert [len(part) for part in call_arrays(TEN, IMAGES, np.copy)] == [10] * ARRAYS


def test_fp32x_stands_beside_fp32_and_tf32() -> None:
    row = measure_kind(TEN, setup(lambda _: fake([])), 1, lambda _: None)
    peers = [(caller["engine"], caller["precision"]) for caller in row["callers"]]
    assert peers == [(OURS, "fp32x"), *((engine, one) for one in ("fp32", "tf32") for engine in (EAGER, COMPILE))]
    assert row["ratio"] and row["tf32_ratio"]


def test_wrong_answers_show() -> None:
    """Ours at the check and in a timed call; a peer's are a reason to have no row."""
    row = measure_kind(ONE, setup(lambda _: fake([], spoils=5)), 1, lambda _: None)
    assert row["wrong"] and row["callers"][0]["reason"] == "3 labels are not the engine's"
    row = measure_kind(ONE, setup(lambda _: fake([], spoils=ARRAYS + 8)), 1, lambda _: None)
    assert row["wrong"] and row["callers"][0]["unsteady"] == 7
    assert "gave other labels in 7 timed calls" in as_text(document(row)) and "WRONG LABELS" in as_text(document(row))
    bad = {"plain": partial(fake, [], 0)}
    row = measure_kind(ONE, setup(lambda _: fake([]), Pool(**{f"{EAGER} fp16": bad})), 1, lambda _: None)
    assert not row["wrong"] and row["best"] == COMPILE
    assert row["callers"][1]["reason"] == "8 labels are not the engine's" and row["callers"][1]["ms"] is None


def test_rows_that_cannot_run_say_why() -> None:
    def refused(kind: Kind) -> Caller:
        raise UserError("needs Hopper")

    row = measure_kind(ONE, setup(refused), 1, lambda _: None)
    assert row["callers"][0]["reason"] == "needs Hopper" and row["ratio"] is None and row["callers"][1]["ms"]
    row = measure_kind(Kind("card", 5, "fp16", CARD), setup(lambda _: fake([])), 1, lambda _: None)
    assert {caller["reason"] for caller in row["callers"]} == {"PyTorch is not installed"}
    assert "no comparison" in as_text(document(row))
    with pytest.raises(ValueError, match="bug"):
        measure_kind(ONE, setup(lambda _: (_ for _ in ()).throw(ValueError("bug"))), 1, lambda _: None)


def test_the_text_and_the_table(tmp_path: Path) -> None:
    rows = deepcopy(STORED["rows"])
    for row in rows:
        row["ratio"] = 0.75
        for caller, ms in zip(row["callers"][:2], (0.2, 0.3), strict=True):
            caller["ms"]["p50"] = ms
    rows[0]["callers"][1]["changed"] = 3
    assert API.render_block("calls", Figures(tmp_path)).startswith("Not measured yet: run `python -m app.lab.calls")
    write_document(document(*rows), tmp_path / CALLS)
    text = as_text(document(*rows))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "LOST, 0.75 × as fast as the best peer" in " ".join(text.split())
    assert "1: PyTorch eager fp16 gave 3 labels that are not the engine's" in text
    made = API.render_block("calls", Figures(tmp_path))
    assert made.count("**0.75**") == len(KINDS) == len(rows)
    assert f"{STORED['device']['name']}, {STORED['date']}, torch {STORED['software']['torch']}" in made
    assert " 200 | " in made and " 300 | " in made


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Its help names every row; it needs a GPU, and says so in one line."""
    with pytest.raises(SystemExit):
        sys_argv = ["calls", "--help"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", sys_argv)
            main()
    told = capsys.readouterr().out
    assert all(f"  {kind.name} " in told for kind in KINDS) and all(len(line) <= 80 for line in told.splitlines())
    with pytest.raises(UserError, match=r"no row is called '1-resistant'.*1-resident"):
        parse_kinds("1,1-resistant")
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-m", "app.lab.calls"], capture_output=True, text=True, env=hidden)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: python -m app.lab.calls needs an NVIDIA GPU: ")


def test_pytorchs_ways_agree() -> None:
    """From ordinary memory, staged or not, and from a tensor."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    graph = random_graph(LENET5)
    pool, found = TorchPool(graph, np.empty, "cpu"), []
    for kind, place in ((Kind("a", 5, "fp32x", ORDINARY), np.copy), (Kind("b", 5, "fp32x", CARD), torch.from_numpy)):
        given = call_arrays(kind, IMAGES, place)
        for make in pool.caller_factories(kind, EAGER, "fp32").values():
            caller = make()
            with caller.settings_context():
                found.append([measuring.labels_on_host(caller.call(images)).tolist() for images in given])
    assert len(found) == 12 and all(labels == found[0] for labels in found)
    assert len({tuple(labels) for labels in found[0]}) > 1


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_classifier_on_the_card(kind: Kind) -> None:
    """Every kind's answers are the engine's, through the caller that is timed."""
    from app.lab.calls.__main__ import card_setup

    shared = card_setup(quick=True)
    alone = shared._replace(peers=Pool(), images=shared.images[:1000], labels=lambda p: shared.labels(p)[:1000])
    row = measure_kind(kind, alone, 1, lambda _: None)
    ours = row["callers"][0]
    if ours["reason"]:
        pytest.skip(ours["reason"])
    assert not row["wrong"] and ours["changed"] == 0 and ours["ms"] is not None
