"""Test ``bench FILE.cu --record`` and ``rank``: what is written, what is believed, and what a page shows of it."""

import hashlib
import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from app.base.errors import UserError
from app.cli import main
from app.lab.bench.compiling import WrongResult
from app.lab.document import FIGURES
from app.lab.user_kernel.header import SIZES
from app.lab.user_kernel.record import describe_source, read_record, table_agrees_with_samples
from app.lab.user_kernel.row import find_row, open_user_kernel
from tests.support.pages import Nesting
from tests.support.schemas import check_described, mistakes
from tests.support.shell import Refuses, listing

Record = Callable[..., dict[str, Any]]
Ranked = Callable[..., dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for records."""
    path = tmp_path / "records"
    path.mkdir()
    return path


@pytest.fixture
def record(answers: dict[str, Any], mine: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> Record:
    """Records ``mine.cu``, of which a comment makes another source, as timed on no real card; returns the record."""
    text = mine.read_text()

    def make(name: str = "ada", ms: float = 2.5, comment: str = "", author: str = "") -> dict[str, Any]:
        mine.write_text(text + comment)
        answers["time_in_process"]["samples"] = [ms * (1 + index / 100) for index in range(-5, 6)]
        path = folder / f"{name}.json"
        options = ["--batch", "20", "--only", "direct,constant", "--record", str(path), "--overwrite"]
        assert main(["bench", str(mine), *options, *(["--author", author] if author else [])]) == 0
        capsys.readouterr()
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    return make


@pytest.fixture
def ranked(folder: Path, capsys: pytest.CaptureFixture[str]) -> Ranked:
    """Ranks the folder; returns the document, which is as described."""

    def run(code: int = 0) -> dict[str, Any]:
        assert main(["rank", str(folder), "--json", "-"]) == code
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert not mistakes(found)
        return found

    return run


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the kernel in a record."""
    return [row for table in found["bench"]["tables"] for row in table["rows"] if row["kind"] == "file"]


def test_a_record_is_the_report_with_its_source(record: Record, mine: Path, folder: Path) -> None:
    author = "Ada".ljust(100, "!")  # the longest name
    found = record("ada", author=author, comment="// é\r\n")
    digest = hashlib.sha256(mine.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
    assert found["source"] == {"file": "mine.cu", "sha256": digest, "like": None} and found["author"] == author
    assert re.fullmatch(r"\d+\.\d+", found["nvrtc"]) and not mistakes(found)
    assert [row["ms"] for row in rows(found)] == [2.5] * 4 and not any(row["wrong"] for row in rows(found))
    assert {"direct", "constant"} < {row["name"] for row in found["bench"]["tables"][0]["rows"]}
    assert read_record(folder / "ada.json") == found
    pooling = find_row("pool:direct")  # the same technique as a convolution's
    with open_user_kernel(pooling.path, "pool:direct") as row:
        like = describe_source(row)["like"]
    assert like is not None and find_row(like) is pooling


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (WrongResult("wrong: image 3"), "mine.cu on conv1, float32, is wrong: wrong: image 3"),
        (UserError("line 3: grid is 0"), "mine.cu was not timed: mine.cu on conv2, float16: line 3: grid is 0"),
    ],
)
def test_only_a_right_kernel_has_one(
    error: Exception, reason: str, answers: dict[str, Any], mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers["time_in_process"] = error
    path = mine.with_suffix(".json")
    assert main(["bench", str(mine), "--batch", "20", "--only", "direct", "--record", str(path)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"no record is written: {reason}" and not path.exists()


def test_options_that_do_not_go_together(mine: Path, refuses: Refuses) -> None:
    before = listing(mine.parent)
    refuses(["bench", "--record", "new.json"], "--record new.json is for a file of your own: name FILE.cu, or leave it")
    refuses(["bench", mine, "--author", "Ada"], "--author is written into a record: add --record")
    refuses(["bench", mine, "--author", "a\nb"], "--author: .* is not one line of up to 100 characters")
    refuses(["bench", mine, "--record", mine], "--record .* is the same file as FILE")
    mine.with_suffix(".json").write_text("old")
    refuses(["bench", mine, "--record", mine.with_suffix(".json")], "exists: name another --record, or replace it")
    mine.with_suffix(".json").unlink()
    assert listing(mine.parent) == before


def test_the_faster_of_one_problem_and_card_is_first(record: Record, ranked: Ranked, folder: Path) -> None:
    slow, fast = record("slow", 5.0, "// b"), record("fast", 1.5, "// a", "Ada")
    record("same", 1.5, "// c")
    for name, change in (
        ("card", {"device": slow["bench"]["device"] | {"name": "Another Card"}}),
        ("size", {"device": slow["bench"]["device"] | {"multiprocessors": 66}}),
        ("warm", {"settings": slow["bench"]["settings"] | {"l2": "warm"}}),
    ):
        (folder / name).mkdir()
        (folder / name / "one.json").write_text(json.dumps(slow | {"bench": slow["bench"] | change}))
    found = ranked()
    assert len(found["problems"]) == 4 * len(rows(slow)) and found["unranked"] == []
    first = next(
        one
        for one in found["problems"]
        if (one["card"], one["multiprocessors"], one["l2"], one["dtype"]) == ("Some Card", 132, "cold", "float32")
    )
    told = [(one["place"], one["handed_in"][0]["record"], one["behind"], one["beats"]) for one in first["kernels"]]
    assert told == [
        (1, "fast.json", [], ["02 direct", "04 constant"]),
        (1, "same.json", [], ["02 direct", "04 constant"]),
        (3, "slow.json", ["02 direct", "04 constant"], []),
    ]
    assert first["kernels"][0]["row"] in rows(fast)
    others = [one["kernels"] for one in found["problems"] if one["card"] == "Another Card" or one["l2"] == "warm"]
    assert {len(kernels) for kernels in others} == {1}


def test_one_source_has_one_row_with_all_names(
    record: Record, ranked: Ranked, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record("ada", 2.5, author="Ada")
    copied = record("bob", 2.4, author="<script>alert(1)</script>")
    copied["source"]["file"] = "bobs.cu"
    for row in rows(copied):
        row["name"] = "bobs.cu"
    (folder / "bob.json").write_text(json.dumps(copied))
    (only,) = ranked()["problems"][0]["kernels"]
    assert [one["record"] for one in only["handed_in"]] == ["bob.json", "ada.json"] and only["row"]["ms"] == 2.4
    page = folder / "page.html"
    assert main(["rank", str(folder), "--html", str(page), "--wide"]) == 0
    assert "<script>alert(1)</script>, Ada (one source)" in capsys.readouterr().out
    text = page.read_text()
    Page(text)
    assert "bobs.cu, mine.cu (one source)" in text and "&lt;script&gt;" in text and "<script" not in text
    assert "A record is no proof" in text and "http" not in text.replace("http-equiv", "")


class Page(Nesting):
    """The page."""

    VOID = ("meta",)


def edited(where: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Sets one field of a record's kernel, ``where`` its dotted place, or a field of the record."""

    def edit(found: dict[str, Any]) -> None:
        *path, last = where.split(".")
        part = found if path[:1] == ["record"] else rows(found)[0]
        for name in path[path[:1] == ["record"] :]:
            part = part[int(name)] if isinstance(part, list) else part[name]
        part[last] = value

    return edit


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a faster time": (edited("ms", 0.5), "the figures of 'conv1' do not follow from its samples"),
    "other samples": (edited("samples", [0.5] * 11), "the figures of 'conv1' do not follow"),
    "no samples": (edited("samples", []), "has a time without a check or without samples"),
    "a share": (edited("rates.share", 0.9), "the figures of 'conv1' do not follow"),
    "another layer": (
        edited("record.bench.tables.0.problems.float32", "conv channels=2 height=28 width=28 maps=32 kernel=5"),
        "the figures of 'conv1' do not follow",
    ),
    "no layer": (edited("record.bench.tables.0.problems.float32", "conv channels=x"), "do not follow"),
    "no kernel": (edited("record.bench.tables.0.problems.float32", "worm size=2"), "do not follow"),
    "lower peaks": (edited("record.bench.peaks.gbytes_per_s", 1.0), "the figures of 'conv1' do not follow"),
    "no check": (edited("error", None), "has a time without a check"),
    "a wrong kernel": (edited("wrong", True), "mine.cu on conv1, float32, is wrong"),
    "another file": (edited("record.source.file", "other.cu"), "'mine.cu' is timed, and not other.cu"),
    "no file": (edited("record.source.file", "../x.cu"), r".source.file: '../x.cu' is no name of a kernel's file"),
    "a name of lines": (edited("record.author", "a\nb"), ".author: .* is not one line"),
    "more": (edited("record.more", 1), "'more' is unknown"),
    "no kernel's rows": (edited("record.bench.tables", []), "mine.cu was not timed: the report has no row of it"),
    "a report": (edited("record.schema", "lenet5-inference/bench/1"), "is none of lenet5-inference/kernel-record/1"),
}


def test_what_contradicts_itself_is_listed_with_its_reason(record: Record, ranked: Ranked, folder: Path) -> None:
    found = record("ada")
    for fault, (edit, _) in FAULTS.items():
        edit(false := deepcopy(found))
        (folder / f"{fault}.json").write_text(json.dumps(false))
    document = ranked(code=1)
    reasons = {one["record"]: one["reason"] for one in document["unranked"]}
    assert reasons.keys() == {f"{fault}.json" for fault in FAULTS}
    for fault, (_, reason) in FAULTS.items():
        assert re.search(reason, reasons[f"{fault}.json"]) and str(folder) not in reasons[f"{fault}.json"], fault
    ranks = [each for part in document["problems"] for each in part["kernels"]]
    assert {one["record"] for each in ranks for one in each["handed_in"]} == {"ada.json"}


def test_a_source_beside_its_record_is_held_against_it(
    record: Record, ranked: Ranked, mine: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record("ada")
    assert not ranked()["problems"][0]["kernels"][0]["beside"]
    (folder / "ada.cu").write_text(mine.read_text().replace("\n", "\r\n"))
    assert ranked()["problems"][0]["kernels"][0]["beside"]
    (folder / "ada.cu").write_text(mine.read_text() + "// faster")
    found = ranked(code=1)
    assert found["problems"] == [] and "is of another source than ada.cu beside it" in found["unranked"][0]["reason"]
    assert main(["rank", str(folder), "--html", str(folder / "page.html")]) == 1
    assert "not ranked: ada.json: is of another source" in " ".join(capsys.readouterr().out.split())
    assert "is of another source than ada.cu" in (folder / "page.html").read_text()


def test_nothing_to_rank(folder: Path, refuses: Refuses) -> None:
    refuses(["rank", folder], r"records has no records \(\*.json\): write one by bench FILE.cu --record")
    refuses(["rank", folder / "none"], "none is not a folder: name one with records")
    (folder / "notes.json").write_text("notes")
    refuses(["rank", folder, "--html", folder / "notes.json"], "notes.json exists: name another --html")


def test_a_report_of_a_real_card_agrees_with_itself() -> None:
    report = json.loads((FIGURES / "h100_bench_lenet5.json").read_text())
    single = [one for one in report["tables"] if "+" not in one["item"] and one["operation"] in SIZES]
    assert len(single) == 6 and all(table_agrees_with_samples(table, report["peaks"]) for table in single)


@pytest.mark.gpu
def test_on_the_card(mine: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record of the same code as ``direct``, and none of a wrong kernel."""
    path, text = folder / "ada.json", mine.read_text()
    options = ["--batch", "2000", "--only", "direct", "--record", str(path)]
    assert main(["bench", str(mine), *options]) == 0
    found = read_record(path)
    check_described(found)
    (folder / "ada.cu").write_text(text)
    capsys.readouterr()
    assert main(["rank", str(folder), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    check_described(document)
    assert len(document["problems"]) == len(rows(dict(found))) and document["problems"][0]["kernels"][0]["beside"]
    path.unlink()
    mine.write_text(text.replace("REAL sum = 0;", "REAL sum = images > 150;"))
    assert main(["bench", str(mine), *options]) == 1 and not path.exists()
