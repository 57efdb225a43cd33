"""What is read beside images and weights: tuning tables, figures, reports, SHA256SUMS and compiled kernels.

A cached kernel that is not exactly what was put there is none.
"""

import json
import math
import os
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from unittest import mock

from app.base.errors import UserError
from app.cuda import compiler
from app.files import shipped
from app.kernels.problems import tuning_key
from app.lab.bench.cases import network_items
from app.lab.compare import command as compare_command
from app.lab.user_kernel.rank import as_text, build_html_page, build_ranking
from app.network.graph import network_graph
from app.planning import tuning
from docs.generate import systems
from docs.generate.__main__ import DOCUMENTS
from docs.generate.figures import BENCH, COMPARISONS, FIGURES, FILES, Figures, file_content_check
from tests.fuzz.harness import Pair, Target, linked
from tests.fuzz.mutate import damaged, other_json

CUBIN = b"\x7fELF" + bytes(range(256)) * 2
DIGEST = "0123456789abcdef" * 4


def make_tuning(folder: Path) -> Pair:
    """What ``auto`` goes by: it chooses among what is read."""
    card = tuning.REFERENCE_CARDS["sm_90a"]
    shipped_table = json.loads((tuning.SHIPPED / tuning.table_file_name(card)).read_text())
    items = {item.name: item for item in network_items(network_graph("lenet5"))}
    problems = [items[name].problems["float32"] for name in ("conv2", "fc1")]
    entries = {tuning_key(problem): shipped_table["entries"][tuning_key(problem)] for problem in problems}
    few = {**shipped_table, "entries": {**entries, "fc": {}}}

    def read(path: Path) -> None:
        found = tuning._read_table(path)
        for variants in found.values():
            for name, tuned in variants.items():
                assert isinstance(name, str) and type(tuned.images) is int and tuned.images > 0
                assert type(tuned.ms) is float and tuned.ms > 0 and math.isfinite(tuned.ms_per_image)
                assert all(type(name) is str and type(n) is int and n > 0 for name, n in tuned.parameters.items())
        assert all(tuning.Tuning(found).choose_kernel(problem, "sm_90a") for problem in problems)

    return lambda rng: other_json(rng, few), read


def make_figures(folder: Path) -> Pair:
    """Documents as ``python -m docs.generate`` reads them: of each that is taken, some blocks are written.

    The first line of a case names its file.
    """
    names = [*FILES, *(path.name for path in FIGURES.glob(COMPARISONS))]
    good = {name: json.loads((FIGURES / name).read_text()) for name in names if (FIGURES / name).exists()}
    for bench in (good[name] for name in BENCH.values()):  # fewer rows, so that what matters is hit more often
        bench["tables"] = [{**table, "rows": table["rows"][:4]} for table in bench["tables"]]
        for part in (bench, *bench["batches"]):
            part["totals"] = part["totals"][:6]
    compared = (one for name in good if fnmatch(name, COMPARISONS) for one in good[name]["comparisons"])
    for row in (row for one in compared for row in one["rows"]):
        for measured in (row["on_card_ms"], row["end_to_end_ms"]):
            if measured is not None and "samples" in measured:
                measured["samples"] = measured["samples"][:3]
    checked = {name: file_content_check(name)(document) for name, document in good.items()}
    blocks = [(document, block) for document in DOCUMENTS for block in document.blocks]

    def generate(rng: Random) -> bytes:
        name = rng.choice([*good])
        return f"{name}\n".encode() + other_json(rng, good[name])

    def read(path: Path) -> None:
        name, _, content = path.read_bytes().partition(b"\n")
        (folder / name.decode()).write_bytes(content)
        figures = Figures()
        figures.update({**checked, name.decode(): Figures(folder)[name.decode()]})
        with mock.patch.object(systems, "shipped_weights", dict):  # reading the weights takes a second
            for document, block in Random(content).sample(blocks, 3):
                document.render_block(block, figures)

    return generate, read


def make_compared(folder: Path) -> Pair:
    """Reports of every kind, as ``compare`` reads them."""
    from tests.lab.compare.test_compare import DOCUMENTS as REPORTS

    goods = [{"schema": f"lenet5-inference/{kind}", **document} for kind, (document, _) in REPORTS.items()]

    def read(path: Path) -> None:
        assert all(row.median > 0 for row in compare_command._read_report(path).rows.values())

    return lambda rng: other_json(rng, rng.choice(goods)), read


def make_sums(folder: Path) -> Pair:
    """The list of hashes beside the shipped weights."""
    good = "".join(f"{DIGEST}  {name}_fashion.h5\n" for name in ("lenet5", "mlp")).encode()

    def read(path: Path) -> None:
        for name, digest in shipped.read_checksums(linked(folder / shipped.CHECKSUMS, path)).items():
            assert name and len(digest) == 64 and set(digest) <= set("0123456789abcdef")

    return lambda rng: damaged(rng, good), read


def make_kernels(folder: Path) -> Pair:
    """Compiled kernels in the cache. The reader answers with the machine code or None, which counts as refused."""
    good = folder / "good.cubin"
    compiler._write_cached_cubin(good, CUBIN)
    content = good.read_bytes()

    def read(path: Path) -> bool:
        os.chmod(path, 0o600)  # noqa: PTH101 - as the cache has it
        assert compiler._read_cached_cubin(good) == CUBIN
        found = compiler._read_cached_cubin(path)
        assert found is None or (path.read_bytes() == content and found == CUBIN)
        return found is not None

    return lambda rng: damaged(rng, content), read


def make_records(folder: Path) -> Pair:
    """Records of users' kernels, as ``rank`` reads them: what is ranked has a time and a page."""
    report = json.loads((FIGURES / "h100_bench_lenet5.json").read_text())
    first = next(one for one in report["tables"] if one["item"] == "conv1")
    row = next(one for one in first["rows"] if one["name"] == "direct")
    rates = row["rates"] | {"library_ratio": None, "previous_ratio": None}
    mine = row | {"kind": "file", "name": "mine.cu", "step": None, "rates": rates}
    report |= {"tables": [first | {"rows": [mine]}], "totals": [], "batches": [], "whole_program": []}
    source = {"file": "mine.cu", "sha256": DIGEST, "like": None}
    about = {"schema": "lenet5-inference/kernel-record/1", "version": "1", "nvrtc": "12.9", "author": "Ada"}
    good = about | {"source": source, "bench": report}

    def read(path: Path) -> None:
        linked(folder / "mine.json", path)
        found = build_ranking(folder)
        for refused in found["unranked"]:
            raise UserError(refused["reason"])
        assert as_text(found) and "<h2>Rules" in build_html_page(found)
        assert all(one["row"]["ms"] > 0 for part in found["problems"] for one in part["kernels"])

    return lambda rng: other_json(rng, good), read


TARGETS = (
    Target("records", 1000, make_records),
    Target("tuning", 5000, make_tuning),
    Target("figures", 1600, make_figures),
    Target("compared", 4000, make_compared),
    Target("sums", 800, make_sums),
    Target("kernels", 1000, make_kernels),
)
