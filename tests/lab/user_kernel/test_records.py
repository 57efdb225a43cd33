"""Test ``bench FILE.cu --record`` and ``rank``: written records, refused records, and the ranking's page."""

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
from app.lab.user_kernel.row import find_named_variant, open_user_kernel
from tests.support.pages import Nesting
from tests.support.schemas import check_described, mistakes
from tests.support.shell import Refuses, listing

Record = Callable[..., dict[str, Any]]
Ranked = Callable[..., dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder for records."""
    path = tmp_path / "records"
    path.mkdir()
    return path


@pytest.fixture
def make_record(answers: dict[str, Any], mine: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> Record:
    """Return a function that writes and returns a record of ``mine.cu``, with a comment added and a made-up time."""
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
def rank(folder: Path, capsys: pytest.CaptureFixture[str]) -> Ranked:
    """Return a function that ranks the folder and returns the document, which has its schema."""

    def run(code: int = 0) -> dict[str, Any]:
        assert main(["rank", str(folder), "--json", "-"]) == code
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert not mistakes(found)
        return found

    return run


def file_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the user's kernel in a record."""
    return [row for table in found["bench"]["tables"] for row in table["rows"] if row["kind"] == "file"]


def test_a_record_is_the_report_with_its_source(make_record: Record, mine: Path, folder: Path) -> None:
    author = "Ada".ljust(100, "!")  # the longest name
    found = make_record("ada", author=author, comment="// é\r\n")
    digest = hashlib.sha256(mine.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
    assert found["source"] == {"file": "mine.cu", "sha256": digest, "like": None} and found["author"] == author
    assert re.fullmatch(r"\d+\.\d+", found["nvrtc"]) and not mistakes(found)
    assert [(row["ms"], row["wrong"]) for row in file_rows(found)] == [(2.5, False)] * 4
    assert {"direct", "constant"} < {row["name"] for row in found["bench"]["tables"][0]["rows"]}
    assert read_record(folder / "ada.json") == found
    pooling = find_named_variant("pool:direct")  # the same technique as a convolution's
    with open_user_kernel(pooling.path, "pool:direct") as row:
        like = describe_source(row)["like"]
    assert like is not None and find_named_variant(like) is pooling


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (WrongResult("wrong: image 3"), "mine.cu on conv1, float32, is wrong: wrong: image 3"),
        (UserError("line 3: grid is 0"), "mine.cu was not timed: mine.cu on conv2, float16: line 3: grid is 0"),
    ],
)
def test_only_a_correct_kernel_gets_a_record(
    error: Exception, reason: str, answers: dict[str, Any], mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers["time_in_process"] = error
    path = mine.with_suffix(".json")
    assert main(["bench", str(mine), "--batch", "20", "--only", "direct", "--record", str(path)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"no record is written: {reason}" and not path.exists()


def test_contradictory_options_are_refused(mine: Path, refuses: Refuses) -> None:
    before = listing(mine.parent)
    refuses(["bench", "--record", "new.json"], "--record new.json is for a file of your own: name FILE.cu, or leave it")
    refuses(["bench", mine, "--author", "Ada"], "--author is written into a record: add --record")
    refuses(["bench", mine, "--author", "a\nb"], "--author: .* is not one line of up to 100 characters")
    refuses(["bench", mine, "--record", mine], "--record .* is the same file as FILE")
    mine.with_suffix(".json").write_text("old")
    refuses(["bench", mine, "--record", mine.with_suffix(".json")], "exists: name another --record, or replace it")
    mine.with_suffix(".json").unlink()
    assert listing(mine.parent) == before


def test_kernels_are_ranked_for_each_problem_and_card(make_record: Record, rank: Ranked, folder: Path) -> None:
    slow, fast = make_record("slow", 5.0, "// b"), make_record("fast", 1.5, "// a", "Ada")
    make_record("same", 1.5, "// c")
    for name, change in (
        ("card", {"device": slow["bench"]["device"] | {"name": "Another Card"}}),
        ("size", {"device": slow["bench"]["device"] | {"multiprocessors": 66}}),
        ("warm", {"settings": slow["bench"]["settings"] | {"l2": "warm"}}),
    ):
        (folder / name).mkdir()
        (folder / name / "one.json").write_text(json.dumps(slow | {"bench": slow["bench"] | change}))
    found = rank()
    assert len(found["problems"]) == 4 * len(file_rows(slow)) and found["unranked"] == []
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
    assert first["kernels"][0]["row"] in file_rows(fast)
    others = [one["kernels"] for one in found["problems"] if one["card"] == "Another Card" or one["l2"] == "warm"]
    assert {len(kernels) for kernels in others} == {1}


def test_one_source_has_one_row_with_all_names(
    make_record: Record, rank: Ranked, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_record("ada", 2.5, author="Ada")
    copied = make_record("bob", 2.4, author="<script>alert(1)</script>")
    copied["source"]["file"] = "bobs.cu"
    for row in file_rows(copied):
        row["name"] = "bobs.cu"
    (folder / "bob.json").write_text(json.dumps(copied))
    (only,) = rank()["problems"][0]["kernels"]
    assert [one["record"] for one in only["handed_in"]] == ["bob.json", "ada.json"] and only["row"]["ms"] == 2.4
    page = folder / "page.html"
    assert main(["rank", str(folder), "--html", str(page), "--wide"]) == 0
    assert "<script>alert(1)</script>, Ada (one source)" in capsys.readouterr().out
    text = page.read_text()
    Page(text)
    assert "bobs.cu, mine.cu (one source)" in text and "&lt;script&gt;" in text and "<script" not in text
    assert "A record is no proof" in text and "http" not in text.replace("http-equiv", "")


class Page(Nesting):
    """Checks the nesting of the page's elements."""

    VOID = ("meta",)


def make_edit(where: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return a function that sets a field of a record. where: path from the kernel's first row, or from ``record``."""

    def edit(found: dict[str, Any]) -> None:
        *path, last = where.split(".")
        part = found if path[:1] == ["record"] else file_rows(found)[0]
        for name in path[path[:1] == ["record"] :]:
            part = part[int(name)] if isinstance(part, list) else part[name]
        part[last] = value

    return edit


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a faster time": (make_edit("ms", 0.5), "the figures of 'conv1' do not follow from its samples"),
    "other samples": (make_edit("samples", [0.5] * 11), "the figures of 'conv1' do not follow"),
    "no samples": (make_edit("samples", []), "has a time without a check or without samples"),
    "a share": (make_edit("rates.share", 0.9), "the figures of 'conv1' do not follow"),
    "another layer": (
        make_edit("record.bench.tables.0.problems.float32", "conv channels=2 height=28 width=28 maps=32 kernel=5"),
        "the figures of 'conv1' do not follow",
    ),
    "no layer": (make_edit("record.bench.tables.0.problems.float32", "conv channels=x"), "do not follow"),
    "no kernel": (make_edit("record.bench.tables.0.problems.float32", "worm size=2"), "do not follow"),
    "lower peaks": (make_edit("record.bench.peaks.gbytes_per_s", 1.0), "the figures of 'conv1' do not follow"),
    "no check": (make_edit("error", None), "has a time without a check"),
    "a wrong kernel": (make_edit("wrong", True), "mine.cu on conv1, float32, is wrong"),
    "another file": (make_edit("record.source.file", "other.cu"), "'mine.cu' is timed, and not other.cu"),
    "no file": (make_edit("record.source.file", "../x.cu"), r".source.file: '../x.cu' is no name of a kernel's file"),
    "a name of lines": (make_edit("record.author", "a\nb"), ".author: .* is not one line"),
    "more": (make_edit("record.more", 1), "'more' is unknown"),
    "no kernel's rows": (make_edit("record.bench.tables", []), "mine.cu was not timed: the report has no row of it"),
    "a report": (make_edit("record.schema", "lenet5-inference/bench/1"), "is none of lenet5-inference/kernel-record/1"),
}


def test_contradictory_records_are_listed_with_a_reason(make_record: Record, rank: Ranked, folder: Path) -> None:
    found = make_record("ada")
    for fault, (edit, _) in FAULTS.items():
        edit(false := deepcopy(found))
        (folder / f"{fault}.json").write_text(json.dumps(false))
    document = rank(code=1)
    reasons = {one["record"]: one["reason"] for one in document["unranked"]}
    assert reasons.keys() == {f"{fault}.json" for fault in FAULTS}
    for fault, (_, reason) in FAULTS.items():
        assert re.search(reason, reasons[f"{fault}.json"]) and str(folder) not in reasons[f"{fault}.json"], fault
    ranks = [each for part in document["problems"] for each in part["kernels"]]
    assert {one["record"] for each in ranks for one in each["handed_in"]} == {"ada.json"}


def test_a_source_beside_its_record_is_compared_with_it(
    make_record: Record, rank: Ranked, mine: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_record("ada")
    assert not rank()["problems"][0]["kernels"][0]["beside"]
    (folder / "ada.cu").write_text(mine.read_text().replace("\n", "\r\n"))
    assert rank()["problems"][0]["kernels"][0]["beside"]
    (folder / "ada.cu").write_text(mine.read_text() + "// faster")
    found = rank(code=1)
    assert found["problems"] == [] and "is of another source than ada.cu beside it" in found["unranked"][0]["reason"]
    assert main(["rank", str(folder), "--html", str(folder / "page.html")]) == 1
    assert "not ranked: ada.json: is of another source" in " ".join(capsys.readouterr().out.split())
    assert "is of another source than ada.cu" in (folder / "page.html").read_text()


def test_a_folder_without_records_is_refused(folder: Path, refuses: Refuses) -> None:
    refuses(["rank", folder], r"records has no records \(\*.json\): write one by bench FILE.cu --record")
    refuses(["rank", folder / "none"], "none is not a folder: name one with records")
    (folder / "notes.json").write_text("notes")
    refuses(["rank", folder, "--html", folder / "notes.json"], "notes.json exists: name another --html")


def test_a_report_of_a_real_card_agrees_with_itself() -> None:
    report = json.loads((FIGURES / "h100_bench_lenet5.json").read_text())
    single = [one for one in report["tables"] if "+" not in one["item"] and one["operation"] in SIZES]
    assert len(single) == 6 and all(table_agrees_with_samples(table, report["peaks"]) for table in single)


@pytest.mark.gpu
def test_records_made_on_the_card(mine: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy of ``direct`` gets a record, a wrong kernel none."""
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
    assert len(document["problems"]) == len(file_rows(dict(found))) and document["problems"][0]["kernels"][0]["beside"]
    path.unlink()
    mine.write_text(text.replace("REAL sum = 0;", "REAL sum = images > 150;"))
    assert main(["bench", str(mine), *options]) == 1 and not path.exists()
