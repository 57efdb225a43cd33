"""Test tuning tables: storing, merging, overriding, refusing damaged ones, and choosing kernels."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.base.errors import UserError
from app.kernels import registry
from app.kernels.problems import ConvProblem, tuning_key
from app.kernels.variant import KernelLaunch, LaunchConfig, Parameters, Unfit, Variant
from app.planning import tuning
from app.planning.tuning import TunedResult, Tuning
from tests.support.kernel_grid import toy_variant
from tests.support.schemas import mistakes
from tests.support.shell import user_error

CARD = "NVIDIA Test 100 (80GB)"
FILE = "nvidia_test_100_80gb.json"
PROBLEM = ConvProblem(1, 8, 8, 4, 3)
OTHER = replace(PROBLEM, maps=5)
SLOW, SLOWER = TunedResult({}, 9.0, 100), TunedResult({}, 10.0, 100)


def configure(_: ConvProblem, parameters: Parameters) -> LaunchConfig:
    if parameters["TILE"] > 32:
        raise Unfit("TILE at most 32")
    return LaunchConfig({}, (KernelLaunch(64, lambda images: (images, 1, 1)),))


def variant(step: int, name: str, **changes: Any) -> Variant:
    tile: dict[str, Any] = {"tunables": {"TILE": (8, 16)}, "defaults": lambda _: {"TILE": 8}}
    return toy_variant(step, name, configure=configure, **tile, **changes)


@pytest.fixture(autouse=True)
def isolate_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the cache, the folder of shipped tables and the kernel registry by those of the test."""
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped")
    rows = [
        variant(1, "old"),
        variant(2, "plain"),
        variant(3, "modern", min_arch=90),
        variant(4, "odd", automatic=False),
    ]
    monkeypatch.setattr(registry, "TABLES", dict.fromkeys(registry.TABLES, ("tests",)))
    monkeypatch.setattr(registry, "module_variants", lambda module: {"tests": rows}.get(module, []))


def table(**results: TunedResult) -> Tuning:
    return Tuning({tuning_key(PROBLEM): results})


def test_stored_results_are_loaded() -> None:
    result = TunedResult({"TILE": 16}, 1.25, 10_000)
    path = tuning.store(CARD, {PROBLEM: {"plain": result}})
    document = json.loads(path.read_text())
    assert path.name == FILE and document["schema"] == tuning.SCHEMA and not mistakes(document)
    assert tuning.load(CARD) == table(plain=result)
    assert tuning.load("another card") == Tuning()


def test_results_are_merged() -> None:
    first, second, newer = (TunedResult({"TILE": 8}, ms, 100) for ms in (3.0, 2.0, 4.0))
    tuning.store(CARD, {PROBLEM: {"old": first, "plain": second}, OTHER: {"old": first}})
    tuning.store(CARD, {PROBLEM: {"plain": newer}})
    entries = tuning.load(CARD).entries
    assert entries == {tuning_key(PROBLEM): {"old": first, "plain": newer}, tuning_key(OTHER): {"old": first}}


def test_results_over_fewer_images_replace_none() -> None:
    many, few = TunedResult({"TILE": 8}, 3.0, 10_000), TunedResult({"TILE": 16}, 0.1, 100)
    tuning.store(CARD, {PROBLEM: {"old": many}})
    tuning.store(CARD, {PROBLEM: {"old": few, "plain": few}})
    assert tuning.load(CARD) == table(old=many, plain=few)


def test_the_users_table_overrides_the_shipped_one() -> None:
    shipped, own = TunedResult({"TILE": 8}, 3.0, 100), TunedResult({"TILE": 16}, 4.0, 100)
    tuning.store(CARD, {PROBLEM: {"old": shipped, "plain": shipped}}).parent.rename(tuning.SHIPPED)
    assert tuning.load(CARD) == table(old=shipped, plain=shipped)
    tuning.store(CARD, {PROBLEM: {"plain": own}})
    assert tuning.load(CARD) == table(old=shipped, plain=own)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"\xff\xfe", b'{"schema": "another/1", "entries": {}}'),
        *(b'{"schema": "lenet5-inference/tuning/1"%s}' % entries for entries in (b"", b', "entries": []')),
        *(
            b'{"schema": "lenet5-inference/tuning/1", "entries": {"conv": {"old": %s}}}' % entry
            for entry in (
                b"1",
                b'{"parameters": {"TILE": 1.5}, "ms": 1, "images": 1}',
                b'{"parameters": {"TILE": true}, "ms": "1", "images": 1}',
                b'{"parameters": {}, "parameters": {}, "ms": 1, "images": 1}',
                b'{"parameters": {"\\ud800": 8}, "ms": 1, "images": 1}',
                b'{"parameters": {}, "ms": 1, "images": 1%s}' % (b"0" * 400),
                b"{}",
                b'{"parameters": {"TILE": 0}, "ms": 1, "images": 1}',
                b'{"parameters": {"TILE": Infinity}, "ms": 1, "images": 1}',
                b'{"parameters": [], "ms": 1, "images": 1}',
                b'{"parameters": {}, "ms": NaN, "images": 1}',
                b'{"parameters": {}, "ms": 0, "images": 1}',
                b'{"parameters": {}, "ms": 1, "images": 0}',
            )
        ),
    ],
)
def test_a_damaged_table_is_an_error_and_stays(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "tuning" / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    for use in (lambda: tuning.load(CARD), lambda: tuning.store(CARD, {PROBLEM: {"old": TunedResult({}, 1.0, 1)}})):
        assert str(path) in user_error(use)
    assert path.read_bytes() == content


def test_a_folder_instead_of_the_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cache" / "tuning" / FILE).mkdir(parents=True)
    with pytest.raises(UserError, match="is a directory"):
        tuning.load(CARD)


def test_an_unwritable_cache_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UserError, match=r"cache|LENET_CACHE_DIR"):
        tuning.store(CARD, {PROBLEM: {"old": TunedResult({}, 1.0, 1)}})


@pytest.mark.parametrize(
    "known, arch, chosen",
    [
        (Tuning(), "sm_90a", ("modern", {})),  # the highest automatic step
        (Tuning(), "sm_80", ("plain", {})),
        (table(old=TunedResult({"TILE": 16}, 2.0, 100)), "sm_90a", ("modern", {})),  # not timed
        (table(old=TunedResult({}, 2.0, 100), plain=TunedResult({}, 1.0, 100)), "sm_90a", ("modern", {})),
        (table(old=TunedResult({"TILE": 16}, 2.0, 100), modern=SLOW), "sm_90a", ("old", {"TILE": 16})),
        (table(modern=TunedResult({"TILE": 16}, 2.0, 100), old=SLOW), "sm_90a", ("modern", {"TILE": 16})),
        (
            table(old=TunedResult({}, 2.0, 100), plain=TunedResult({"TILE": 16}, 1.0, 100)),
            "sm_80",
            ("plain", {"TILE": 16}),
        ),
        # The times per image decide.
        (table(old=TunedResult({}, 2.0, 1000), plain=TunedResult({}, 1.0, 100)), "sm_80", ("old", {})),
        (table(odd=TunedResult({}, 0.1, 100)), "sm_90a", ("modern", {})),  # not automatic
        (table(modern=TunedResult({}, 0.1, 100), old=SLOW, plain=SLOWER), "sm_80", ("old", {})),  # not on sm_80
        (table(gone=TunedResult({}, 0.1, 100)), "sm_90a", ("modern", {})),  # the variant does not exist any more
        (table(old=TunedResult({"TILE": 64}, 0.1, 100)), "sm_90a", ("modern", {})),  # invalid, so is its time
        (table(modern=TunedResult({"WIDTH": 8}, 0.1, 100)), "sm_90a", ("modern", {})),
        (Tuning({tuning_key(OTHER): {"old": TunedResult({}, 0.1, 100)}}), "sm_90a", ("modern", {})),
    ],
)
def test_auto_chooses_the_fastest_known_variant(known: Tuning, arch: str, chosen: tuple[str, dict[str, int]]) -> None:
    found = known.choose_kernel(PROBLEM, arch)
    assert found is not None
    assert (found[0].name, found[1]) == chosen


@pytest.mark.parametrize(("stored", "kept"), [({"TILE": 16}, {"TILE": 16}), ({"TILE": 64}, {}), ({"WIDTH": 8}, {})])
def test_a_named_variant_gets_its_parameters(stored: dict[str, int], kept: dict[str, int]) -> None:
    """Parameters that are no longer valid are replaced by the defaults."""
    known = table(old=TunedResult({}, 0.1, 100), odd=TunedResult(stored, 9.0, 100))
    found = known.choose_kernel(PROBLEM, "sm_90a", registry.find_variant("conv", "odd"))
    assert found is not None
    assert (found[0].name, found[1]) == ("odd", kept)
    assert known.choose_kernel(PROBLEM, "sm_80", registry.find_variant("conv", "modern")) is None


def test_an_unsupported_problem_has_no_variant() -> None:
    assert Tuning().choose_kernel(replace(PROBLEM, dtype="float64"), "sm_90a") is None


def test_shipped_tables_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for path in tuning.SHIPPED.glob("*.json"):
        card = json.loads(path.read_text())["card"]
        assert tuning.table_file_name(card) == path.name and tuning.load(card).entries
