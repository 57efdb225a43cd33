"""Test ``bench`` without a GPU: timed items, stop rule, derived figures, text, charts, options."""

from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from app.base.errors import UserError
from app.base.precision import OFFERED, SINGLE
from app.cuda.compiler import ARCHITECTURES
from app.drawing import journey, roofline, svg
from app.kernels import registry
from app.kernels.problems import ConvProblem, LinearProblem, PairProblem, tuning_key, without_epilogue
from app.lab.bench import job, plots
from app.lab.bench.cases import item_variants, network_items, parse_batch_sizes, parse_shape_items
from app.lab.bench.results import (
    CPU,
    DEBUG,
    LIBRARY,
    OURS,
    Result,
    Table,
    achieved_rates,
    convolution_totals,
    table_record,
)
from app.lab.bench.table import as_text
from app.main_job.statistics import LEAST_RUNS, MOST_RUNS, has_enough_samples, launches_per_sample
from app.network.definitions import NETWORKS
from app.network.graph import network_graph
from app.planning.matching import Choices
from app.planning.plan import plan
from app.records.parts import Peaks
from tests.support.networks_for_tests import with_bytes
from tests.support.peers_for_tests import bench_document
from tests.support.requests import requested
from tests.support.schemas import check_widths

PEAKS: Peaks = {"tflops": {"float32": 50.0, "float16": 600.0}, "gbytes_per_s": 3000.0}
SVG = "{http://www.w3.org/2000/svg}"
CONV = ConvProblem(1, 28, 28, 32, 5, input_dtype="uint8")


def make_table(name: str, problem: ConvProblem = CONV, *, scale: float = 1.0) -> Table:
    """Return the table of a convolution, with made-up times."""
    problems = {"float32": problem, "float16": replace(problem, dtype="float16", output_dtype="float16")}
    rows = (
        Result(CPU, "CPU, NumPy", "float32", ms=500.0 * scale, runs=3, note="10 images, scaled"),
        Result(LIBRARY, "cuDNN, TF32 off", "float32", ms=3.0 * scale, runs=10),
        Result(LIBRARY, "cublas", "float32", 0, ms=4.0 * scale, runs=10, error=0.1),
        Result(OURS, "image-loop", "float32", 1, reason="takes at most 65,535 maps, the grid's limit"),
        Result(OURS, "direct", "float32", 2, ms=8.0 * scale, spread_ms=0.1, runs=10, error=0.25),
        Result(DEBUG, "direct, device debug", "float32", 2, ms=40.0 * scale, runs=10, error=0.25),
        Result(OURS, "shared-tile", "float32", 3, ms=2.0 * scale, runs=10, error=0.2, settings={"TILE": 16}),
        Result(OURS, "half2", "float16", 11, ms=1.0 * scale, runs=10, error=0.5),
    )
    return Table(name, "conv", True, 100, problems, rows)


def make_document() -> dict[str, Any]:
    """Return a bench document of two convolutions and two batch sizes."""
    tables = [make_table("conv1"), make_table("conv2", ConvProblem(32, 12, 12, 64, 5), scale=2.0)]
    programs: list[dict[str, Any]] = [
        {"precision": "fp32", "conv": "direct", "ms": 9.0, "spread_ms": None, "runs": 9, "nodes": ["conv1: direct"]},
        {"precision": "fp16", "conv": "cublas", "ms": None, "spread_ms": None, "runs": 0, "reason": "no cuBLAS"},
    ]
    return bench_document("lenet5", tables, PEAKS, programs, (10, 100))


@pytest.mark.parametrize(
    ("samples", "noise", "stops"),
    [
        ([1.0] * (LEAST_RUNS - 1), 0.01, False),
        ([1.0] * LEAST_RUNS, 0.01, True),
        ([1.0, 2.0] * LEAST_RUNS, 0.01, False),
        ([1.0, 2.0] * LEAST_RUNS, 0.9, True),
        ([1.0, 2.0] * (MOST_RUNS // 2), 0.01, True),
        ([600.0, 900.0], 0.01, False),
        ([600.0, 900.0, 700.0], 0.01, True),
    ],
)
def test_stop_rule(samples: list[float], noise: float, stops: bool) -> None:
    assert has_enough_samples(samples, noise) is stops


def test_only_short_launches_with_a_warm_cache_are_timed_together() -> None:
    assert launches_per_sample(0.004, "cold") == launches_per_sample(5.0, "warm") == 1
    assert launches_per_sample(0.01, "warm") == 20


# Kernels that fuse other layers or store other types, so that plans have other problems; lenet5 is planned with all.
TELLING = ("direct", "register-tiled", "register-patch", "toom-cook", "tensor-core")


@pytest.mark.parametrize("name", NETWORKS)
def test_items_have_every_problem_of_a_plan(name: str) -> None:
    """Results are stored under the problems of the items, and ``auto`` looks up those of a plan."""
    graph = network_graph(name)
    known = {tuning_key(problem) for item in network_items(graph) for problem, _ in item_variants(item, None)}
    asked = set()
    for precision, row, fuse in product(SINGLE, registry.variants("conv"), (True, False)):
        if precision.dtype in row.dtypes and (name == "lenet5" or row.name in TELLING):
            with suppress(UserError):
                nodes = plan(graph, "sm_90a", Choices(precision.name, fuse, {"conv": row})).nodes
                asked |= {tuning_key(node.problem) for node in nodes if node.problem.dtype == precision.dtype}
    for precision in (row for row in OFFERED if row.paired and (name == "lenet5" or not row.calibrated)):
        weights = with_bytes(graph) if precision.calibrated else graph
        products = [node.problem for node in plan(weights, "sm_90a", Choices(precision.name)).nodes if node.parameters]
        forms = [problem for problem in products if isinstance(problem, PairProblem | LinearProblem)]
        general = [replace(problem, exact=False) for problem in forms]
        asked |= {tuning_key(problem) for problem in general if problem.dtype == precision.dtype}
    assert asked and asked <= known


@pytest.mark.parametrize("name", NETWORKS)
def test_every_item_has_a_kernel(name: str) -> None:
    """Chains without a kernel are no items, such as a fully connected layer with softmax and argmax alone."""
    for item in network_items(network_graph(name)):
        for problem in item.problems.values():
            rows = [row for found, row in item_variants(item, None) if found is problem]
            assert any(row.refusal_reason(problem, arch) is None for row in rows for arch in ARCHITECTURES), item.name


def test_items_of_lenet5() -> None:
    found = network_items(network_graph("lenet5"))
    items = {item.name: item for item in found}
    assert len(items) == len(found)
    assert [name for name, item in items.items() if item.is_single_convolution] == ["conv1", "conv2"]
    assert {"pool1", "relu1", "fc1", "conv1+relu1+pool1", "fc1+relu3", "fc2+argmax"} <= items.keys()
    conv1 = items["conv1"].problems["float16"]
    assert isinstance(conv1, ConvProblem)
    assert (conv1.input_dtype, conv1.output_dtype) == ("uint8", "float16")
    assert all(without_epilogue(problem) == problem for problem in items["conv2"].problems.values())  # type: ignore[arg-type]
    assert items["pool1"].problems.keys() == {"float32", "float16"}


def test_networks_have_the_biases_of_the_original_systems() -> None:
    found = {name: [array for array in network_graph(name).parameters if "_bias" in array] for name in NETWORKS}
    layers = {"lenet5": (), "minidnn86": ("conv1", "conv2", "fc1", "fc2")}
    assert found == {name: [f"{layer}_bias" for layer in layers.get(name, ("fc1", "fc2"))] for name in NETWORKS}


def test_variants_are_in_ladder_order_and_can_be_selected() -> None:
    (item,) = parse_shape_items("12,33,33,24,5,1")
    found = [row for problem, row in item_variants(item, None) if problem.dtype == "float32"]
    assert found == [row for row in registry.variants("conv") if "float32" in row.dtypes]
    assert len(found) > 5
    assert {row.name for _, row in item_variants(item, {"direct"})} == {"direct"}


def test_only_variants_for_sparse_filters_get_sparse_problems() -> None:
    items = {item.name: item for item in network_items(network_graph("lenet5"))}
    for name in ("conv1", "conv2", "conv1+relu1+pool1+conv2+relu2+pool2"):
        of_four = name != "conv1"  # which reads one channel
        for problem, row in item_variants(items[name], None):
            assert getattr(problem, "sparse", False) == (row.sparse and of_four), (name, row.name)
            if row.sparse and of_four:
                first, second = 0 if name == "conv2" else 24**2 * 32 * 25, 8**2 * 64 * 800  # products
                assert row.work(problem) == pytest.approx((first + second / 2) / (first + second)), row.name
    served = [row for problem, row in item_variants(items["conv2"], None) if problem.dtype == "float16" and row.sparse]
    assert [row.name for row in served] == ["warpgroup-sparse"]


def test_times_with_sparse_filters_are_stored_under_sparse_problems() -> None:
    """``auto`` looks for them there; for the dense problem it chooses among other kernels."""
    problem = ConvProblem(32, 12, 12, 64, 5, input_dtype="float16", dtype="float16", output_dtype="float16")
    rows = tuple(
        Result(OURS, name, "float16", step, ms=1.0) for step, name in ((21, "warpgroup"), (22, "warpgroup-sparse"))
    )
    found = job.tuned_results([Table("conv2", "conv", True, 100, {"float16": problem}, rows)])
    kept = {one: [*times] for one, times in found.items()}
    assert kept == {problem: ["warpgroup"], replace(problem, sparse=True): ["warpgroup-sparse"]}


def test_rates_say_which_limit_is_nearer() -> None:
    compute = ConvProblem(32, 12, 12, 64, 5)
    found = achieved_rates(compute, "float32", 1000, 1.0, PEAKS)
    assert found["limit"] == "arithmetic"
    assert found["tflops"] == pytest.approx(compute.flops * 1000 / 1e9)
    assert found["share"] == pytest.approx(found["tflops"] / 50)
    assert achieved_rates(CONV, "float16", 1000, 1.0, PEAKS)["limit"] == "memory"


def test_ratios_to_library_and_previous_step() -> None:
    rows: dict[str, Any] = {row["name"]: row["rates"] for row in table_record(make_table("conv1"), PEAKS)["rows"]}
    assert rows["direct"]["library_ratio"] == 0.5  # cuBLAS rather than cuDNN
    assert rows["direct"]["previous_ratio"] is None  # step 1 did not run
    assert rows["shared-tile"]["previous_ratio"] == 4.0
    assert rows["direct, device debug"]["previous_ratio"] == 0.2
    assert rows["half2"]["previous_ratio"] is None
    assert rows["image-loop"] is None


def test_only_complete_totals_have_a_sum() -> None:
    first, second = make_table("conv1"), make_table("conv2", scale=2.0)
    rows = {(row["name"], row["dtype"]): row for row in convolution_totals([first, second])}
    assert rows["direct", "float32"]["sum_ms"] == 24.0
    assert rows["shared-tile", "float32"]["previous_ratio"] == 4.0
    shortened = replace(second, rows=second.rows[:-1])
    assert [row["sum_ms"] for row in convolution_totals([first, shortened]) if row["name"] == "half2"] == [None]
    assert all(row["sum_ms"] is None for row in convolution_totals([first, replace(second, images=50)]))


def test_text_contains_every_row() -> None:
    text = check_widths(as_text, make_document())
    for part in ("Some Card", "the rule", "grid's limit", "10 images, scaled", "TILE=16", "conv1+conv2", "no cuBLAS"):
        assert part in text, part
    assert "note: something" in text
    lines = [line for line in text.splitlines() if "shared-tile" in line]
    assert len(lines) == 4  # two tables, op times, batch sizes
    heads = [line for line in text.splitlines() if "× before" in line and "kernel" in line]
    assert lines[0].index("4.00") + 4 == heads[0].index("× before") + len("× before")  # columns are aligned


def test_only_times_of_registry_variants_are_stored_for_tuning() -> None:
    found = job.tuned_results([make_table("conv1")])
    assert set(found[CONV]) == {"cublas", "direct", "shared-tile"}
    assert found[CONV]["shared-tile"].parameters == {"TILE": 16}
    assert len(found) == 2


def test_bars_and_points_of_the_charts() -> None:
    found = make_document()
    (bar,) = (bar for bar in journey.bars_from_bench(found, "conv1") if bar.name == "shared-tile")
    assert (bar.label, bar.dtype, bar.ms) == ("3 shared-tile", "float32", 2.0)
    labels = {(point.label, point.dtype) for point in roofline.roofline_points(found, "conv1")}
    in_fp32 = {"cuDNN, TF32 off", "0 cublas", "2 direct", "3 shared-tile"}
    assert labels == {(label, "float32") for label in in_fp32} | {("11 half2", "float16")}


def test_charts_are_written(tmp_path: Path) -> None:
    svg.create_chart_folder(tmp_path / "new")
    paths = plots.draw_charts(make_document(), tmp_path / "new")
    names = {f"{what}{item}.svg" for what in ("ladder", "roofline") for item in ("_conv1", "_conv2")}
    assert {path.name for path in paths} == names | {"ladder.svg", "batch_sizes.svg"}
    for path in paths:
        root = ElementTree.parse(path).getroot()
        said = {text for element in root.iter(f"{SVG}text") for text in element.itertext()}
        assert "2 direct" in said
    assert len(list((tmp_path / "new").iterdir())) == len(paths)


def test_plot_folder_is_checked_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        job.job_from_request(requested("bench", f"--plot {tmp_path / 'file' / 'plots'}"))


def test_batch_sizes_are_sorted_and_distinct() -> None:
    assert parse_batch_sizes(7, None) == [7] and parse_batch_sizes(7, "1000,100,1000") == [100, 1000]
