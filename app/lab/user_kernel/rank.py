"""Run ``main.py rank``: rank users' kernels by their records, for each layer and card, as text, page and JSON."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, cast

from app.base.errors import UserError
from app.base.precision import SHORT
from app.commands.rank import RankRequest
from app.drawing.page import html_page, html_table
from app.files.reading import may_exist
from app.files.writing import replace_atomically
from app.lab.bench.standing import split_faster_and_slower, step_name
from app.lab.document import describe_card
from app.lab.user_kernel.record import read_record, source_sha256, timed_rows
from app.lab.user_kernel.source import read_source
from app.records.bench import Table, TimedRow
from app.records.user_kernels import KernelRecord, RankedKernel, RankedProblem, Ranking, Unranked
from app.terminal.output import publish_report
from app.terminal.text import WIDTH, Column, format_factor, format_ms, paragraph, table

RULES = (
    "python main.py bench FILE.cu --record writes a record only if every output that it compares is right: on small "
    "shapes, some drawn anew, and on the timed layer in the first runs, the last one and a random third of the others. "
    "Images and weights change before every run.",
    "A time is the median of CUDA events around single launches; ± is the 90th percentile minus the 10th. Kernels "
    "whose times differ by less may change places in another run.",
    "A ranking has times of one layer, number type, number of images, L2 state and model of card. Cards of one model "
    "may still differ in clock rate and cooling; the second table tells the clock.",
    "The bound is the least time in which this card, by its peaks measured in the same run, can multiply or move each "
    "array once. A share above 100 % calls for a look: small arrays that stay in the cache, or a false record.",
    "A kernel is behind one step of this project and beats others, as timed in the same run.",
    "Records of one source share a row, with all names and the fastest of their times. Sources are compared by their "
    "SHA-256, so a changed comment makes another source.",
    "A record is no proof: it is a text that its owner can change. What contradicts itself is not ranked: a time that "
    "its samples do not give, a rate that its time does not give, a source beside it with another hash.",
    "To judge, run the sources again on one card, each by python main.py bench NAME.cu --record judged/NAME.json (with "
    "--as if that named the row), and rank the folder judged. The hashes tell whether a source is the one handed in.",
)


def rank(request: RankRequest) -> int:
    """Rank the records of a folder, print and write the ranking. Return 1 if a record is refused. Raises UserError."""
    document = build_ranking(request.folder)
    if request.html is not None:
        with replace_atomically(request.html, overwrite=request.output.overwrite) as temporary:
            temporary.write_text(build_html_page(document), encoding="utf-8")
    publish_report(document, as_text, request.output)
    return int(bool(document["unranked"]))


def build_ranking(folder: Path) -> Ranking:
    """Return the ranking of all records in a folder and below it. Raises UserError if there is no record."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: name one with records that bench FILE.cu --record wrote")
    groups: dict[tuple[Any, ...], dict[str, list[RankedKernel]]] = defaultdict(lambda: defaultdict(list))
    unranked: list[Unranked] = []
    for path in sorted(folder.rglob("*.json")):
        name = path.relative_to(folder).as_posix()
        try:
            record = read_record(path)
            beside = _has_source_beside(path, record)
        except UserError as error:
            unranked.append({"record": name, "reason": str(error).removeprefix(f"{path} ")})
            continue
        card, l2 = record["bench"]["device"], record["bench"]["settings"]["l2"]
        for layer, row in timed_rows(record):
            dtype = row["dtype"]
            key = card["name"], card["multiprocessors"], layer["problems"][dtype], dtype, layer["images"], l2
            groups[key][record["source"]["sha256"]].append(_unranked_kernel(name, beside, record, layer, row))
    if not groups and not unranked:
        raise UserError(f"{folder} has no records (*.json): write one by bench FILE.cu --record")
    names = "card", "multiprocessors", "problem", "dtype", "images", "l2"
    problems = [
        dict(zip(names, key, strict=True)) | {"kernels": _rank_kernels(group.values())}
        for key, group in sorted(groups.items(), key=lambda item: item[0])
    ]
    return {
        "schema": "lenet5-inference/ranking/1",
        "folder": str(folder),
        "problems": cast(list[RankedProblem], problems),
        "unranked": unranked,
    }


def _has_source_beside(path: Path, record: KernelRecord) -> bool:
    """Return whether the .cu file lies beside its record. Raises UserError if that file has another SHA-256."""
    source = path.with_suffix(".cu")
    if not may_exist(source):
        return False
    if source_sha256(read_source(source)) != record["source"]["sha256"]:
        raise UserError(f"{path} is of another source than {source.name} beside it: let bench {source.name} write it")
    return True


def _unranked_kernel(name: str, beside: bool, record: KernelRecord, layer: Table, row: TimedRow) -> RankedKernel:
    """Return a kernel's ranking entry, place 1 at first. name: file of its record. beside: whether its .cu is there."""
    faster, slower = split_faster_and_slower(layer["rows"], row)
    bench, versions = record["bench"], f"NVRTC {record['nvrtc']}, lenet5-inference {record['version']}"
    return {
        "place": 1,
        "sha256": record["source"]["sha256"],
        "handed_in": [{"record": name, "file": record["source"]["file"], "author": record["author"]}],
        "beside": beside,
        "row": row,
        "beats": [step_name(step) for step in slower],
        "behind": [step_name(step) for step in faster],
        "date": bench["date"],
        "software": f"{describe_card(bench['device'])}, {versions}",
    }


def _rank_kernels(group: Collection[list[RankedKernel]]) -> list[RankedKernel]:
    """Return each source's fastest entry, with its place and all its records. group: for each source, its entries."""
    for same in group:
        same.sort(key=_median_ms)
    best = sorted((same[0] | {"handed_in": [one["handed_in"][0] for one in same]} for same in group), key=_median_ms)
    return [kernel | {"place": 1 + sum(_median_ms(other) < _median_ms(kernel) for other in best)} for kernel in best]


def _median_ms(kernel: RankedKernel) -> float:
    return kernel["row"]["ms"]


Cell = Callable[[RankedKernel], str]  # formats the cell of a column
NAMES: tuple[tuple[Column, Cell], ...] = (
    (Column("place"), lambda one: str(one["place"])),
    (Column("kernel", left=True), lambda one: _join_names(each["file"] for each in one["handed_in"])),
    (Column("by", left=True), lambda one: _join_names(each["author"] or "no name" for each in one["handed_in"])),
)
FIGURES = (
    *NAMES,
    (Column("ms"), lambda one: format_ms(one["row"]["ms"])),
    (Column("± ms", optional=1), lambda one: format_ms(one["row"]["spread_ms"])),
    (Column("of bound"), lambda one: f"{one['row']['rates']['share'] or 0:.0%}"),
    (Column("bound of", left=True, optional=3), lambda one: one["row"]["rates"]["limit"]),
    (Column("× library", optional=2), lambda one: format_factor(one["row"]["rates"]["library_ratio"])),
    (Column("behind", left=True), lambda one: "".join(one["behind"][-1:])),
    (Column("beats", left=True), lambda one: _abbreviate_list(one["beats"])),
)
ORIGINS = (
    *NAMES,
    (Column("runs"), lambda one: str(one["row"]["runs"])),
    (Column("remarks", left=True), lambda one: one["row"]["note"]),
    (Column("date", left=True), lambda one: one["date"]),
    (Column("software", left=True), lambda one: one["software"]),
    (Column("source", left=True), lambda one: one["sha256"][:12] + ", beside its record" * one["beside"]),
    (Column("records", left=True), lambda one: ", ".join(each["record"] for each in one["handed_in"])),
)


def _join_names(names: Iterable[str]) -> str:
    """Return the names, each once, with commas; add a note to several names that they belong to one source."""
    found = [*dict.fromkeys(names)]
    return ", ".join(found) + " (one source)" * (len(found) > 1)


def _abbreviate_list(steps: Sequence[str]) -> str:
    """Return the first name and the number of others: ``02 direct and 3 more``."""
    return "".join(steps[:1]) + f" and {len(steps) - 1} more" * (len(steps) > 1)


def ranking_title(one: RankedProblem) -> str:
    """Return the title of one ranking: layer, number type, number of images, card and L2 state."""
    card = f"{one['card']} ({one['multiprocessors']} SMs)"
    return f"{one['problem']}, {SHORT[one['dtype']]}, {one['images']:,} images, {card}, {one['l2']} L2"


def as_text(document: Ranking, width: int = WIDTH) -> str:
    """Return the document as text: a table for each ranking, and the files that cannot be ranked."""
    columns = [column for column, _ in FIGURES]
    parts = [
        [*paragraph(ranking_title(one), width), *table(columns, _table_cells(FIGURES, one), width)]
        for one in document["problems"]
    ]
    parts += [paragraph(f"not ranked: {one['record']}: {one['reason']}", width) for one in document["unranked"]]
    parts.append(paragraph("A record is no proof; --html FILE writes a page that tells how to judge again.", width))
    return "\n\n".join("\n".join(lines) for lines in parts)


def build_html_page(document: Ranking) -> str:
    """Return the document as an HTML page: tables for each ranking, files that cannot be ranked, and the rules."""
    parts = []
    for one in document["problems"]:
        parts += [
            f"<h2>{escape(ranking_title(one))}</h2>",
            _html_ranking_table("Times", FIGURES, one),
            _html_ranking_table("Where they come from", ORIGINS, one),
        ]
    unranked = [[one["record"], one["reason"]] for one in document["unranked"]]
    parts += ["<h2>Not ranked</h2>"] * bool(unranked)
    parts.append(html_table("Files without a place", ["file", "reason"], unranked, "ll"))
    parts += ["<h2>Rules</h2>", "<ul>", *(f"<li>{escape(rule)}</li>" for rule in RULES), "</ul>"]
    return html_page("Ranking of kernels", parts)


def _table_cells(columns: Iterable[tuple[Column, Cell]], one: RankedProblem) -> list[list[str]]:
    return [[cell(kernel) for _, cell in columns] for kernel in one["kernels"]]


def _html_ranking_table(caption: str, columns: Sequence[tuple[Column, Cell]], one: RankedProblem) -> str:
    sides = "".join("l" if column.left else "r" for column, _ in columns)
    return html_table(caption, [column.head for column, _ in columns], _table_cells(columns, one), sides)
