"""Test ``bench --peers --search``: each setting is tried once and stored; comparisons time the fastest settings."""

import json
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.files.cache import cache_dir
from app.lab.batch import ONE_PIECE, Batch
from app.lab.peers import peers, torch
from app.lab.peers import search as module
from app.lab.peers.peers import EAGER, EngineFactories, Job, compare_all, search_settings, why_fastest_unknown
from app.lab.peers.rounds import OURS, Engine
from app.lab.peers.search import Searches, fastest_settings
from app.lab.peers.text import search_text
from app.network.definitions import LENET5, NETWORKS
from app.records.peers import Search
from tests.lab.conftest import RunBench
from tests.support.peers_for_tests import CARD, FakeEngine, OurFake, small_batch
from tests.support.schemas import check_widths, mistakes

CARD_NAME = "Some Card"
SOFTWARE = {"torch": {"torch": "2.99", "triton": "9"}, "jax": {"jax": "0.9"}}
SLOW, FAST, BROKEN = "default, contiguous", "max-autotune, channels last", "default, channels last"
FEW = {"torch": (EAGER, SLOW, BROKEN, FAST), "jax": ("jit",)}
# Setting → ms on the card, and end to end.
TIMES = {EAGER: [3.0, 4.0], SLOW: [2.0, 2.0], FAST: [1.0, 2.5], "jit": [2.5, 3.0]}


@pytest.fixture(autouse=True)
def temporary_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a temporary cache and a temporary folder of shipped times; return the folder."""
    pytest.importorskip("app.lab.peers.ours", reason="CuPy is not installed")  # its modules keep the real pinned_array
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "FIGURES", tmp_path)
    monkeypatch.setattr("app.cuda.memory.pinned_array", np.empty)
    monkeypatch.setattr(torch, "free_compiled_code", lambda: None)
    return tmp_path


def open_searches(**software: dict[str, str]) -> Searches:
    return Searches(CARD_NAME, SOFTWARE | software)


def lookup(which: Searches, engine: str = "torch", images: int = 40) -> Search:
    return which.find(LENET5, "fp32", images, engine)


def read_stored() -> Any:
    document = json.loads((cache_dir() / "peers" / "some_card.json").read_text(encoding="utf-8"))
    assert not mistakes(document)
    return document


# --- what is stored -------------------------------------------------------------------------------------------------


def test_times_are_stored_at_once_and_found_again() -> None:
    first = open_searches()
    first.add(lookup(first), SLOW, [1.23456789, 2.0], "")
    first.add(lookup(first), BROKEN, [], "no such layout")
    (one,) = read_stored()["searches"]
    assert (one["ms"], one["failed"]) == ({SLOW: [1.23457, 2.0]}, {BROKEN: "no such layout"})
    assert (one["network"], one["digest"], one["software"]) == ("lenet5", LENET5.digest, SOFTWARE["torch"])
    assert lookup(open_searches()) == one == lookup(first)
    assert oct((cache_dir() / "peers" / "some_card.json").stat().st_mode)[-3:] == "600"


def test_times_are_found_only_for_equal_versions_networks_precisions_and_batches() -> None:
    first = open_searches()
    first.add(lookup(first), SLOW, [1.0, 2.0], "")
    newer = open_searches(torch={"torch": "3.0", "triton": "9"})
    others = [
        lookup(newer),
        lookup(first, "jax"),
        lookup(first, images=1),
        first.find(NETWORKS["mlp"], "fp32", 40, "torch"),
        first.find(LENET5, "fp16", 40, "torch"),
    ]
    assert not [one for one in others if one["ms"] or one["failed"]]
    newer.add(lookup(newer), FAST, [0.5, 1.0], "")
    assert lookup(open_searches())["ms"] == {SLOW: [1.0, 2.0]}, "the times of older versions stay"
    assert len(read_stored()["searches"]) == 2


def test_the_users_times_override_the_shipped_times(temporary_cache: Path) -> None:
    first = open_searches()
    first.add(lookup(first), SLOW, [9.0, 9.0], "")
    first.add(lookup(first), FAST, [1.0, 2.5], "")
    (cache_dir() / "peers" / "some_card.json").rename(temporary_cache / "peers_some_card.json")
    assert lookup(open_searches())["ms"] == {SLOW: [9.0, 9.0], FAST: [1.0, 2.5]}
    second = open_searches()
    second.add(lookup(second), SLOW, [2.0, 2.0], "")
    assert lookup(open_searches())["ms"] == {SLOW: [2.0, 2.0], FAST: [1.0, 2.5]} == read_stored()["searches"][0]["ms"]


def test_two_searches_at_once_keep_all_times() -> None:
    one, other = open_searches(), open_searches()
    mine, of_jax = lookup(one), lookup(one, "jax")
    one.add(mine, SLOW, [1.0, 2.0], "")
    other.add(lookup(other), FAST, [3.0, 4.0], "")
    other.add(lookup(other, "jax"), "jit", [5.0, 6.0], "")
    one.add(mine, EAGER, [7.0, 8.0], "")
    one.add(of_jax, "jit, pieces", [9.0, 9.0], "")
    assert [search["ms"] for search in read_stored()["searches"]] == [
        {SLOW: [1.0, 2.0], FAST: [3.0, 4.0], EAGER: [7.0, 8.0]},
        {"jit": [5.0, 6.0], "jit, pieces": [9.0, 9.0]},
    ]


@pytest.mark.parametrize("change", [("}", ""), ("lenet5-inference", "other"), ("2.0", "2.0, 3.0")])
def test_a_damaged_file_is_refused_in_one_line(change: tuple[str, str]) -> None:
    first, path = open_searches(), cache_dir() / "peers" / "some_card.json"
    first.add(lookup(first), SLOW, [1.0, 2.0], "")
    path.write_text(path.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    with pytest.raises(UserError, match=r"some_card.json .*delete it, and search again$"):
        open_searches()


def test_the_fastest_of_all_peers_by_each_measurement() -> None:
    first = open_searches()
    for engine, setting in chain(*([(engine, one) for one in settings] for engine, settings in FEW.items())):
        if setting != BROKEN:
            first.add(lookup(first, engine), setting, TIMES[setting], "")
    every = [lookup(first, engine) for engine in FEW]
    assert fastest_settings(every, FEW) == [("torch", FAST), ("torch", SLOW)]
    assert fastest_settings(every[1:], FEW) == [("jax", "jit")], "once if it is the same"
    assert fastest_settings([], FEW) == fastest_settings([lookup(first, images=1)], FEW) == []
    assert why_fastest_unknown(every, FEW).startswith("4 of ")
    first.add(lookup(first), BROKEN, [], "no such layout")
    assert not why_fastest_unknown(every, FEW)
    assert why_fastest_unknown([lookup(first, images=1)], {"torch": ()}) == "no setting of a peer runs"


# --- searching and comparing ----------------------------------------------------------------------------------------


class Peer(FakeEngine):
    """A fake engine named by its setting; BROKEN fails."""

    def enqueue(self) -> None:
        if self.name == BROKEN:
            raise RuntimeError("no such layout")
        super().enqueue()


@pytest.fixture
def batch(few_runs: None, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """Return a small batch, which is loaded for every network."""
    found = small_batch()
    monkeypatch.setattr(peers, "load_batch", lambda network, count, checked: found)
    return found


def make_factories(batch: Batch, diary: list[str], check_card: Any = lambda: None) -> EngineFactories:
    def make(
        kind: type[FakeEngine], name: str, _: Any, __: Any, labels: np.ndarray, precision: str, sparse: bool = True
    ) -> Engine:
        return kind(batch.truth[: len(labels)], labels, diary, name)

    found = {engine: {name: partial(make, Peer, name) for name in settings} for engine, settings in FEW.items()}
    return EngineFactories(
        partial(make, OurFake, OURS), found, [], check_card, lambda graph, precision: precision == "fp16"
    )


JOB = Job(["lenet5"], ["fp32", "fp32x", "fp16"], [20, 40], ["ours", "torch", "jax"])


def closed_names(diary: list[str]) -> list[str]:
    return [entry.removesuffix(" closed") for entry in diary if entry.endswith("closed")]


def test_a_search_tries_each_setting_once(batch: Batch) -> None:
    diary: list[str] = []
    steps: list[str] = []
    first = open_searches()
    found = [*search_settings(JOB, make_factories(batch, diary), first, steps.append)]
    assert [(one["images"], one["precision"], one["engine"]) for one in found] == [
        (images, precision, engine) for engine in FEW for images in (20, 40) for precision in ("fp32", "fp16")
    ]
    assert closed_names(diary) == [*chain(*(4 * settings for settings in FEW.values()))] and len(steps) == 20
    assert steps[0] == f"lenet5, 20: torch {EAGER} fp32"
    for one in found:
        assert [*one["ms"], *one["failed"]] == [name for name in FEW[one["engine"]] if name != BROKEN] + [BROKEN] * (
            one["engine"] == "torch"
        )
    text = check_widths(search_text, first.to_document(found))
    assert text.count(f"torch fp32, {BROKEN}: no such layout") == 1
    again: list[str] = []
    assert [*search_settings(JOB, make_factories(batch, again), open_searches(), steps.append)] == found and not again


def test_an_interrupted_search_is_resumed(batch: Batch) -> None:
    class Interrupt(BaseException):
        pass

    begun: list[str] = []

    def stop(what: str) -> None:
        begun.append(what)
        if len(begun) > 3:
            raise Interrupt

    one = Job(["lenet5"], ["fp32"], [40], ["torch", "jax"])
    diary: list[str] = []
    with pytest.raises(Interrupt):
        next(search_settings(one, make_factories(batch, diary), open_searches(), stop))
    assert len(lookup(open_searches())["ms"]) + len(lookup(open_searches())["failed"]) == 3
    assert len([*search_settings(one, make_factories(batch, diary), open_searches(), lambda _: None)]) == 2
    assert closed_names(diary) == [*chain(*FEW.values())]


def test_a_setting_that_breaks_the_card_is_stored_and_ends_the_search(batch: Batch) -> None:
    """If the search went on, all later settings would seem to fail."""

    def check() -> None:
        if lookup(open_searches())["failed"]:
            raise RuntimeError("illegal address")

    with pytest.raises(UserError, match=rf"^torch {BROKEN} fp32 left the card unusable \(illegal address\); .*again"):
        [
            *search_settings(
                Job(["lenet5"], ["fp32"], [40], ["torch"]),
                make_factories(batch, [], check),
                open_searches(),
                lambda _: None,
            )
        ]
    assert (set(lookup(open_searches())["ms"]), set(lookup(open_searches())["failed"])) == ({EAGER, SLOW}, {BROKEN})


def test_a_comparison_times_the_fastest_settings_and_eager(batch: Batch) -> None:
    """All settings are known for 40 images in fp32; elsewhere only eager is timed, and there is no ratio."""
    first = open_searches()
    for engine, settings in FEW.items():
        for setting in settings:
            first.add(lookup(first, engine), setting, TIMES.get(setting, []), "no such layout")
    first.add(lookup(first), "of another version of this program", [0.1, 0.1], "")
    diary: list[str] = []
    small, large = compare_all(JOB, make_factories(batch, diary), first, 1, lambda _: None)
    assert [(row["engine"], row["setting"], row["precision"]) for row in large["rows"]] == [
        *(("ours", "", "fp32"), ("ours", "", "fp32x")),
        *(("torch", FAST, "fp32"), ("torch", SLOW, "fp32"), ("torch", EAGER, "fp32")),
        *(("ours", "", "fp16"), ("ours", "dense", "fp16"), ("torch", EAGER, "fp16")),
    ]
    assert [entry.get("setting") for entry in large["ratios"]] == [None, None, None, "dense"]
    assert [entry["reason"] for entry in large["ratios"][:2]] == ["", ""]
    assert all(entry["on_card_ms"] and entry["end_to_end_ms"] for entry in large["ratios"][:2])
    for entry in (*large["ratios"][2:], *small["ratios"]):
        assert entry["reason"].startswith("0 of the peers' 5 settings were tried on this card: add --search")
        assert entry["on_card_ms"] is entry["end_to_end_ms"] is None
    assert [row["setting"] for row in small["rows"] if row["engine"] != OURS] == [EAGER] * 2
    assert (small["images"], large["images"], large["digest"]) == (20, 40, LENET5.digest)


def test_a_peer_that_breaks_the_card_ends_the_comparison(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the peer, not this program, which then cannot free its arrays; the next run skips the setting."""
    first = open_searches()
    for setting, ms in {BROKEN: [0.5, 0.5], EAGER: [3.0, 4.0], FAST: [1.0, 1.0], SLOW: [2.0, 2.0]}.items():
        first.add(lookup(first), setting, ms, "")
    first.add(lookup(first, "jax"), "jit", [], "no JAX")
    monkeypatch.setattr("sys.unraisablehook", None)
    monkeypatch.setattr(OurFake, "close", lambda _: broken_card())
    job = Job(["lenet5"], ["fp32"], [40], ["ours", "torch", "jax"])

    def broken_card() -> None:
        raise RuntimeError("illegal address")

    with pytest.raises(UserError, match=rf"^torch {BROKEN} fp32 left the card unusable \(illegal address\); .*again"):
        next(compare_all(job, make_factories(batch, [], broken_card), first, 1, lambda _: None))
    for one in (first, open_searches()):
        assert [*lookup(one)["ms"]] == [EAGER, FAST, SLOW] and [*lookup(one)["failed"]] == [BROKEN], "one verdict each"
    assert fastest_settings([lookup(one, engine) for one in (first, open_searches()) for engine in FEW], FEW) == [
        ("torch", FAST)
    ]


def test_search_command(batch: Batch, some_card: None, run_bench: RunBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_engine_factories", lambda *_: make_factories(batch, []))
    code, text, document = run_bench("--peers --search --batch 40 --precision fp32x")
    assert code == 0 and document["schema"] == "lenet5-inference/peer-settings/1"
    assert [one["engine"] for one in document["searches"]] == ["torch", "jax"] and document["card"] == CARD["name"]
    assert text == search_text(document) + "\n" and ONE_PIECE not in text
