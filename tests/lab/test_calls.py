"""Test ``python -m app.lab.calls`` on the CPU with fake peers: measurement, text, and PyTorch's callers."""

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
    make_input_arrays,
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


def fake_caller(diary: list[int], spoils: float = np.inf) -> Caller:
    """Return a caller that answers LABELS. diary: gets sums of images. spoils: number of calls before wrong answers."""

    def call(images: Any) -> np.ndarray:
        images = images.reshape(-1, 28 * 28)
        diary.append(int(images[0].sum()))
        return ((images.sum(1) + (len(diary) > spoils)) % 10).astype(np.uint8)

    return Caller(call, lambda: None)


class Pool(TorchPool):
    """Fake peers. found: engine and precision → caller factories."""

    def __init__(self, **found: Mapping[str, Callable[[], Caller]]) -> None:
        self.found = found

    def caller_factories(self, kind: Kind, engine: str, precision: str) -> Mapping[str, Callable[[], Caller]]:
        return self.found.get(f"{engine} {precision}", {"plain": partial(fake_caller, [])})


def fake_setup(ours: Callable[[Kind], Caller], pool: TorchPool | None = None) -> Setup:
    def no_card(array: np.ndarray) -> Any:
        raise UserError("PyTorch is not installed")

    return Setup(IMAGES, lambda _: LABELS, ours, pool or Pool(), np.copy, no_card, lambda: None)


@pytest.fixture(autouse=True)
def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TURN_MS": 0.0, "LEAST_CALLS": 12, "WARMUP": 1, "TRIES": 1, "UNTIMED": 1}.items():
        monkeypatch.setattr(measuring, name, value)


STORED = json.loads((FIGURES / CALLS).read_text(encoding="utf-8"))


def make_document(*rows: Any) -> Any:
    """Return the stored document with these rows."""
    return STORED | {"rows": [*rows]}


def test_images_change_from_call_to_call() -> None:
    diary: list[int] = []
    row = measure_kind(ONE, fake_setup(lambda _: fake_caller(diary)), 2, lambda _: None)
    assert len(set(diary)) == ARRAYS and all(one != other for one, other in pairwise(diary))
    assert [caller["ms"]["runs"] for caller in row["callers"] if caller["ms"]] == [24, 24, 24]
    assert not row["wrong"] and row["ratio"] is not None and row["best"] in (EAGER, COMPILE)
    assert [len(part) for part in make_input_arrays(TEN, IMAGES, np.copy)] == [10] * ARRAYS


def test_fp32x_is_compared_with_fp32_and_tf32() -> None:
    row = measure_kind(TEN, fake_setup(lambda _: fake_caller([])), 1, lambda _: None)
    peers = [(caller["engine"], caller["precision"]) for caller in row["callers"]]
    assert peers == [(OURS, "fp32x"), *((engine, one) for one in ("fp32", "tf32") for engine in (EAGER, COMPILE))]
    assert row["ratio"] and row["tf32_ratio"]


def test_wrong_labels_are_reported() -> None:
    """``Classifier`` gives them at the check and in timed calls; a peer that gives them has no times."""
    row = measure_kind(ONE, fake_setup(lambda _: fake_caller([], spoils=5)), 1, lambda _: None)
    assert row["wrong"] and row["callers"][0]["reason"] == "3 labels are not the engine's"
    row = measure_kind(ONE, fake_setup(lambda _: fake_caller([], spoils=ARRAYS + 8)), 1, lambda _: None)
    assert row["wrong"] and row["callers"][0]["unsteady"] == 7
    text = as_text(make_document(row))
    assert "gave other labels in 7 timed calls" in text and "WRONG LABELS" in text
    bad = {"plain": partial(fake_caller, [], 0)}
    row = measure_kind(ONE, fake_setup(lambda _: fake_caller([]), Pool(**{f"{EAGER} fp16": bad})), 1, lambda _: None)
    assert not row["wrong"] and row["best"] == COMPILE
    assert row["callers"][1]["reason"] == "8 labels are not the engine's" and row["callers"][1]["ms"] is None


def test_callers_that_cannot_run_have_a_reason() -> None:
    def refused(kind: Kind) -> Caller:
        raise UserError("needs Hopper")

    row = measure_kind(ONE, fake_setup(refused), 1, lambda _: None)
    assert row["callers"][0]["reason"] == "needs Hopper" and row["ratio"] is None and row["callers"][1]["ms"]
    row = measure_kind(Kind("card", 5, "fp16", CARD), fake_setup(lambda _: fake_caller([])), 1, lambda _: None)
    assert {caller["reason"] for caller in row["callers"]} == {"PyTorch is not installed"}
    assert "no comparison" in as_text(make_document(row))
    with pytest.raises(ValueError, match="bug"):
        measure_kind(ONE, fake_setup(lambda _: (_ for _ in ()).throw(ValueError("bug"))), 1, lambda _: None)


def test_text_and_table_of_the_documents(tmp_path: Path) -> None:
    rows = deepcopy(STORED["rows"])
    for row in rows:
        row["ratio"] = 0.75
        for caller, ms in zip(row["callers"][:2], (0.2, 0.3), strict=True):
            caller["ms"]["p50"] = ms
    rows[0]["callers"][1]["changed"] = 3
    assert API.render_block("calls", Figures(tmp_path)).startswith("Not measured yet: run `python -m app.lab.calls")
    write_document(make_document(*rows), tmp_path / CALLS)
    text = as_text(make_document(*rows))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "LOST, 0.75 × as fast as the best peer" in " ".join(text.split())
    assert "1: PyTorch eager fp16 gave 3 labels that are not the engine's" in text
    made = API.render_block("calls", Figures(tmp_path))
    assert made.count("**0.75**") == len(KINDS) == len(rows)
    assert f"{STORED['device']['name']}, {STORED['date']}, torch {STORED['software']['torch']}" in made
    assert " 200 | " in made and " 300 | " in made


def test_help_and_errors_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The help names every row; without a GPU, the error is one line."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(sys, "argv", ["calls", "--help"])
        main()
    told = capsys.readouterr().out
    assert all(kind.images == int(kind.name.partition("-")[0]) for kind in KINDS)
    assert all(f"  {kind.name} " in told for kind in KINDS) and all(len(line) <= 80 for line in told.splitlines())
    with pytest.raises(UserError, match=r"no row is called '1-resistant'.*1-resident"):
        parse_kinds("1,1-resistant")
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-m", "app.lab.calls"], capture_output=True, text=True, env=hidden)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: python -m app.lab.calls needs an NVIDIA GPU: ")


def test_all_pytorch_callers_give_equal_labels() -> None:
    """The images lie in pageable memory, staged or not, or in a tensor."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    graph = random_graph(LENET5)
    pool, found = TorchPool(graph, np.empty, "cpu"), []
    for kind, place in ((Kind("a", 5, "fp32x", ORDINARY), np.copy), (Kind("b", 5, "fp32x", CARD), torch.from_numpy)):
        given = make_input_arrays(kind, IMAGES, place)
        for make in pool.caller_factories(kind, EAGER, "fp32").values():
            caller = make()
            with caller.settings_context():
                found.append([measuring.labels_on_host(caller.call(images)).tolist() for images in given])
    assert len(found) == 12 and all(labels == found[0] for labels in found)
    assert len({tuple(labels) for labels in found[0]}) > 1


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_timed_callers_on_the_card_give_the_labels_of_the_engine(kind: Kind) -> None:
    from app.lab.calls.__main__ import make_card_setup

    shared = make_card_setup(quick=True)
    alone = shared._replace(peers=Pool(), images=shared.images[:1000], labels=lambda p: shared.labels(p)[:1000])
    row = measure_kind(kind, alone, 1, lambda _: None)
    ours = row["callers"][0]
    if ours["reason"]:
        pytest.skip(ours["reason"])
    assert not row["wrong"] and ours["changed"] == 0 and ours["ms"] is not None
