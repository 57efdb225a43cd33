"""Test ``bench``, ``sweep`` and ``profile`` on a GPU with few images: tables, JSON, pictures and timelines."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from app.base.errors import UserError
from app.cli import main
from app.kernels.problems import tuning_key
from app.kernels.registry import variants
from app.kernels.variant import Variant
from app.lab.bench.cases import Item, item_variants, network_items, parse_shape_items
from app.lab.bench.results import CPU_NAME
from app.lab.bench.whole_network import precision_variant_pairs
from app.lab.profile.stamps import PHASES
from app.lab.sweep import job as sweep_command
from app.network.graph import Graph, network_graph
from app.planning import tuning
from app.planning.plan import plan
from tests.support.kernel_cases import Case, architecture
from tests.support.kernel_device import cases_of, compile_all
from tests.support.requests import named_choices
from tests.support.schemas import check_described

pytestmark = [pytest.mark.gpu, pytest.mark.fashion_mnist]
SHAPE = "3,17,21,33,3,2"
OPTIONS = {"conv": "--conv", "gemm": "--fc", "pool": "--pool"}
LAYERS = {"conv": "conv2", "gemm": "fc1", "pool": "pool1"}


@pytest.fixture(autouse=True)
def tuning_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store tuning results in an empty folder, hide the shipped ones, and keep the cache of compiled kernels."""
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(tuning, "cache_dir", lambda: tmp_path)
    return tmp_path


def layer_cases(items: list[Item], only: set[str] | None = None) -> list[Case]:
    """Return the kernels that bench times layer by layer."""
    cases = [Case(row, problem) for item in items for problem, row in item_variants(item, only)]
    return [case for case in cases if case.refusal is None]


def network_cases(graph: Graph, settings: list[tuple[str, str]]) -> list[Case]:
    """Return the kernels of the network's plans for each (precision, convolution kernel) that can compute it."""
    plans = []
    for precision, conv in settings:
        with suppress(UserError):  # bench gives the reason in the row
            plans.append(plan(graph, architecture(), named_choices(precision, kernels={"conv": conv})))
    return cases_of(plans)


def run_command(
    capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str, plot: bool = False
) -> tuple[str, Any]:
    """Run a command, which must succeed; return what it printed and its JSON document."""
    path = folder / "report.json"
    drawing = ["--plot", str(folder / "plots")] if plot else []
    code = main([*arguments, *drawing, "--json", str(path), "--overwrite"])
    captured = capsys.readouterr()
    if code == 2 and "cuBLAS" in captured.err:
        pytest.skip(captured.err)
    assert code == 0, captured.err
    document = json.loads(path.read_text(encoding="utf-8"))
    check_described(document)
    return captured.out, document


def drawn_pictures(folder: Path) -> set[str]:
    """Return the names of the pictures drawn; all must be complete SVG."""
    paths = list((folder / "plots").glob("*"))
    assert all(ElementTree.parse(path).getroot().tag.endswith("svg") for path in paths)
    return {path.name for path in paths}


def check_tables(document: dict[str, Any], items: list[Item], only: set[str] | None = None) -> None:
    """Check that each kernel has a row in each type, with a time and right results, or with the reason why not."""
    assert document["schema"] == "lenet5-inference/bench/1" and document["device"]["kind"] == "cuda"
    for item, table in zip(items, document["tables"], strict=True):
        rows = table["rows"]
        assert table["item"] == item.name and rows[0]["kind"] == "cpu" and rows[0]["ms"] > 0
        found = {(row["dtype"], row["name"]): row for row in rows}
        for problem, variant in item_variants(item, only):
            row = found[problem.dtype, variant.name]
            assert not row["wrong"], row
            refusal = variant.refusal_reason(problem, architecture())
            if refusal is not None:
                assert row["ms"] is None and row["reason"] == refusal
            elif variant.needs_cublas and row["ms"] is None:
                assert "cuBLAS" in row["reason"]
            else:
                assert row["ms"] > 0 and row["runs"] >= 3 and 0 <= row["error"] <= 1, row
                assert row["rates"]["tflops"] > 0 and row["rates"]["gbytes_per_s"] > 0


def test_bench_of_every_variant(capsys: pytest.CaptureFixture[str], tuning_folder: Path) -> None:
    graph = network_graph("lenet5")
    items = network_items(graph)
    compile_all([*layer_cases(items), *network_cases(graph, precision_variant_pairs(graph, None))])
    arguments = ("bench", "--batches", "20,53", "--noise", "0.3", "--save-tuning")
    text, document = run_command(capsys, tuning_folder, *arguments, plot=True)
    check_tables(document, items)
    assert document["images"] == 53 and [batch["images"] for batch in document["batches"]] == [20, 53]
    ops = [table for table in document["tables"] if table["is_op"]]
    assert [table["item"] for table in ops] == ["conv1", "conv2"]
    for table in ops:
        assert any(row["kind"] == "debug" and row["ms"] for row in table["rows"])
    assert document["whole_program"] == document["batches"][-1]["whole_program"]
    for batch in document["batches"]:
        programs = {(row["precision"], row["conv"]): row for row in batch["whole_program"]}
        assert set(programs) == {*precision_variant_pairs(graph, None), ("fp32", CPU_NAME)}
        left_out = {row["conv"]: row["reason"] for row in programs.values() if not row["ms"]}
        assert {*left_out} <= {"cublas", "warpgroup", "warpgroup-sparse"}
        assert all("cuBLAS" in why if name == "cublas" else "reads float16" in why for name, why in left_out.items())
    for name in ("Op times", "Whole program", *(row.name for row in variants("conv"))):
        assert name in text, name
    names = {f"{what}_{item}.svg" for what in ("ladder", "roofline") for item in ("conv1", "conv2")}
    assert drawn_pictures(tuning_folder) == names | {"ladder.svg", "batch_sizes.svg"}
    # 'auto' chooses by the stored times.
    known = tuning.load(document["device"]["name"])
    for item, table in zip(items, document["tables"], strict=True):
        timed = {row["name"]: row["ms"] for row in table["rows"] if row["dtype"] == "float32" and row["ms"]}
        automatic = [row.name for row in variants(item.operation) if row.automatic and row.name in timed]
        chosen = known.choose_kernel(item.problems["float32"], architecture()) if "float32" in item.problems else None
        assert chosen is None or chosen[0].name == min(automatic, key=lambda name: timed[name])


def test_bench_of_a_shape(capsys: pytest.CaptureFixture[str], tuning_folder: Path) -> None:
    items = parse_shape_items(SHAPE)
    compile_all(layer_cases(items))
    text, document = run_command(
        capsys, tuning_folder, "bench", "--shape", SHAPE, "--batch", "31", "--noise", "0.3", "--l2", "warm"
    )
    check_tables(document, items)
    assert not document["whole_program"] and "warm L2" in text


@pytest.mark.parametrize("network", ["fa19", "k7", "minidnn86", "mlp"])
def test_bench_of_other_networks(network: str, capsys: pytest.CaptureFixture[str], tuning_folder: Path) -> None:
    only = {"direct", "register-patch", "tensor-core", "naive"}
    graph = network_graph(network)
    items = [item for item in network_items(graph) if item_variants(item, only)]
    compile_all([*layer_cases(items, only), *network_cases(graph, precision_variant_pairs(graph, only))])
    arguments = ("bench", "--network", network, "--batch", "7", "--noise", "0.3", "--only", ",".join(sorted(only)))
    check_tables(run_command(capsys, tuning_folder, *arguments)[1], items, only)


SWEPT = [row for operation in OPTIONS for row in variants(operation) if row.tunables]


@pytest.mark.parametrize("row", SWEPT, ids=lambda row: row.source.removesuffix(".cu"))
def test_sweep(row: Variant, capsys: pytest.CaptureFixture[str], tuning_folder: Path) -> None:
    """Try two values of two parameters; the best point is stored, where 'auto' finds it."""
    graph, layer = network_graph("lenet5"), LAYERS[row.operation]
    precision = sweep_command.choose_sweep_precision(row, None)
    problem = sweep_command.layer_problem(graph, layer, row, architecture(), precision, fused=False)
    defaults = row.defaults(problem)
    varied = list(row.tunables)[:2]
    settings = []
    for name, default in defaults.items():
        other = next(value for value in row.tunables[name] if value != default)
        settings += ["--set", f"{name}={default},{other}" if name in varied else f"{name}={default}"]
    arguments = ("sweep", OPTIONS[row.operation], row.name, "--layer", layer, "--batch", "31", *settings)
    text, document = run_command(capsys, tuning_folder, *arguments, plot=True)
    assert document["schema"] == "lenet5-inference/sweep/1" and document["variant"] == row.name
    (found,) = document["layers"]
    assert document["finished"] == document["total"] >= 1 and not found["wrong"]
    assert found["best_ms"] == min(point["ms"] for point in found["points"]) and found["default_ms"] is not None
    assert all(point["error_share"] <= 1 for point in found["points"])
    assert sum(entry["count"] for entry in found["skipped"]) + document["total"] >= 2 ** len(varied)
    assert f"best: {' '.join(f'{name}={value}' for name, value in found['best'].items())}" in text
    kept = tuning.load(document["card"]).entries[tuning_key(problem)][row.name]
    assert kept.parameters == found["best"] and kept.images == 31
    if len(found["points"]) > 1:
        names = {f"sweep_{row.name}_lenet5_{layer}_heat.svg"}
        assert drawn_pictures(tuning_folder) == names


def test_sweep_of_the_pipeline(capsys: pytest.CaptureFixture[str], tuning_folder: Path) -> None:
    text, document = run_command(capsys, tuning_folder, "sweep", "--pipeline", "--batch", "500", plot=True)
    assert document["finished"] == document["total"] == 24  # chunks of 50, 250 and 500 on 1 to 8 streams
    assert all(point["ms"] > 0 for point in document["points"]) and document["best"] in document["points"]
    assert "best: --streams" in text
    assert drawn_pictures(tuning_folder) == {"sweep_pipeline_lenet5_heat.svg"}


@pytest.mark.parametrize("row", [None, *variants("conv")], ids=lambda row: row.name if row else "auto")
def test_profile(row: Variant | None, capsys: pytest.CaptureFixture[str], tuning_folder: Path) -> None:
    """Expect every kernel and copy in the table, and a timeline of complete events with a row for each stream."""
    path = tuning_folder / "timeline.json"
    named = ["--conv", f"conv2={row.name}" if row.instructions == "wgmma" else row.name] if row else []
    arguments = ("profile", "--batch", "200", "--chunk", "50", "--streams", "3", *named, "--trace", str(path))
    text, document = run_command(capsys, tuning_folder, *arguments)
    rows = document["rows"]
    assert {entry["kind"] for entry in rows} >= {"h2d", "kernel", "d2h"}
    of_kernels = "+".join(entry["layer"] for entry in rows if entry["kind"] == "kernel")
    assert {"conv1", "conv2", "fc1", "fc2", "argmax"} <= {*of_kernels.split("+")}
    assert sum(entry["share"] for entry in rows) == pytest.approx(1)
    assert all(0 <= entry["min_ms"] <= entry["average_ms"] <= entry["max_ms"] for entry in rows)
    assert document["api"] and all(entry["calls"] > 0 for entry in document["api"])
    assert not row or row.name in text
    timeline = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    events = [event for event in timeline if event["ph"] == "X"]
    assert {event["cat"] for event in events} == {"api", "copy", "kernel"}
    assert all(event["dur"] >= 0 for event in events)
    assert len({event["tid"] for event in events if event["cat"] != "api"}) == 3
    named_rows = {event["args"]["name"] for event in timeline if event["ph"] == "M"}
    assert {"stream 1", "stream 2", "stream 3", "API calls"} <= named_rows


@pytest.mark.parametrize("precision", ["fp16", "fp32x", "int8"])
def test_timeline(precision: str, capsys: pytest.CaptureFixture[str], tuning_folder: Path) -> None:
    """Expect that each image is requested, staged and computed, and each warpgroup shown runs all phases."""
    if architecture() != "sm_90a":
        pytest.skip("the stamped kernels are for Hopper")
    path, batch = tuning_folder / "timeline.html", 2000
    arguments = ("profile", "--batch", str(batch), "--precision", precision, "--timeline", str(path))
    _, document = run_command(capsys, tuning_folder, *arguments)
    timeline = document["timeline"]
    assert timeline["images_are"] == "read by the first kernel" and 500 < timeline["mhz"] < 3000
    assert [timeline["images"][curve][-1] for curve in ("requested", "staged", "computed")] == [batch] * 3
    assert len(timeline["warpgroups"]) == {"fp16": 5, "fp32x": 3, "int8": 5}[precision]
    for spans in timeline["warpgroups"]:
        assert {phase for phase, _, _ in spans} == {*PHASES}
        assert all(0 <= start <= stop for _, start, stop in spans)
    last = max(stop for spans in timeline["warpgroups"] for _, _, stop in spans) / 1e3
    assert last < timeline["end_to_end_ms"]["stamped"] * 1.5
    assert path.read_text(encoding="utf-8").count("</svg>") == 2


def test_profile_with_counters(capsys: pytest.CaptureFixture[str], tuning_folder: Path) -> None:
    """Expect rows if Nsight Compute may count here, otherwise a line that says why there are none."""
    _, document = run_command(capsys, tuning_folder, "profile", "--batch", "50", "--counters")
    if document["counters"]:
        assert document["counters_note"] is None and all(row["bound"] for row in document["counters"])
    else:
        assert document["counters_note"].startswith("no counters: ") and "\n" not in document["counters_note"]
