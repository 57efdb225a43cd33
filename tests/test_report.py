"""Test the report of the main job, as a document and as text, with made-up outcomes."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from app.cuda.device import describe_cpu
from app.engine.buffers import AT_ONCE, DIRECT
from app.main_job.report import as_text, build_report
from app.main_job.result import ComparedRun, Outcome, Timing, layer_row
from app.main_job.statistics import Timeline, describe_bottleneck, pipeline_usage
from app.network.definitions import LENET5
from app.network.verdicts import Accuracy, Agreement, Reference, compare_labels, judge_answers
from app.network.weights import Weights
from app.records.derive import record_fields, split_annotated_type
from app.records.report import GpuSettings, Layer
from app.terminal.output import write_json
from app.terminal.text import UNLIMITED
from data_tools.dataset import Dataset
from data_tools.fashion_mnist import CLASSES
from tests.support.networks_for_tests import random_graph, random_images
from tests.support.peers_for_tests import CARD
from tests.support.schemas import check_widths, mistakes

BATCH = 50
GRAPH = random_graph(LENET5)
WEIGHTS = Weights(dict(GRAPH.parameters), "lenet5", Path("weights.h5"), sha256="0123456789abcdef" * 4)
IMAGES = random_images(LENET5, BATCH)
LABELS = (np.arange(BATCH) % 10).astype(np.uint8)
DATA = Dataset(IMAGES, LABELS, CLASSES, "Fashion-MNIST test split, /data", "test")
STORED = Reference(LABELS, np.ones(BATCH), np.ones(BATCH, np.float32))
AGREED = compare_labels(LABELS, STORED, "stored float64 reference")
TIMELINES = {
    "the copies": Timeline(h2d=[(0, 2), (2, 4)], kernels=[(2, 2.5), (4, 4.5)], d2h=[(2.5, 2.6), (4.5, 4.6)]),
    "compute": Timeline(h2d=[(0, 0.5), (0.5, 1)], kernels=[(0.5, 3), (3, 6)], d2h=[(3, 3.1), (6, 6.1)]),
    "enqueueing": Timeline(h2d=[(0, 0.1), (5, 5.1)], kernels=[(0.1, 0.2), (5.1, 5.2)], d2h=[(0.2, 0.3), (5.2, 5.3)]),
}


def layer_with(timing: Timing, name: str = "conv1+relu1+pool1", kernel: str = "implicit-gemm") -> Layer:
    """Return the row of a layer with this timing."""
    return layer_row(name, kernel, BATCH, timing, 6_000_000_000, 9_000_000)


LAYERS = (
    layer_with(Timing((2.0, 3.0, 4.0))),
    layer_row("fc1", "register-tiled", BATCH, Timing((1.0,)), 1_000_000_000, 5_000_000),
)
CPU = Outcome(
    device=describe_cpu(2),
    settings={"streams": 4, "chunk": 10, "layer_runs": 20},
    labels=LABELS,
    cycle=None,
    end_to_end=Timing(tuple(float(ms) for ms in range(100, 0, -1))),
    layers=LAYERS,
    op_times=LAYERS[:1],
    limit="limited by compute on 2 cores",
    notes=(),
)
GPU = replace(
    CPU,
    device={**CARD, "driver": "580.1.2"},
    on_card=Timing((0.5, 0.7)),
    on_card_images=40,
    usage=pipeline_usage(TIMELINES["compute"]),
    limit=describe_bottleneck(pipeline_usage(TIMELINES["compute"])),
    device_bytes=3_000_000,
    peak_device_bytes=7_000_000,
    notes=("chunks were cut",),
)
ONCE = {"start": 50.0, "import": 300.0, "numpy": 120.0, "context": 200.0, "cupy": 250.0, "data": 90.0}
both = pytest.mark.parametrize("outcome", [GPU, CPU], ids=["GPU", "CPU"])


def report(
    outcome: Outcome, accuracy: Accuracy | None = None, data: Dataset = DATA, compared: Agreement | None = None
) -> Any:
    accuracy = accuracy or judge_answers(LABELS, LABELS, BATCH, AGREED)
    return build_report(GRAPH, WEIGHTS, data, len(outcome.labels), outcome, accuracy, ONCE, 2345.6, compared)


def wide(told: Any) -> str:
    """Return the report's text as ``--wide`` prints it, with one line for each fact."""
    return as_text(told, UNLIMITED)


def test_an_infinite_margin_is_null_in_json(tmp_path: Path) -> None:
    agreement = compare_labels(LABELS + 1, replace(STORED, margins=np.full(BATCH, np.inf)), "stored float64 reference")
    told = report(GPU, judge_answers(LABELS + 1, LABELS, BATCH, agreement))
    write_json(told, tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    assert [difference["margin"] for difference in written["agreement"]["differences"]] == [None] * BATCH
    assert "float64 margin inf (WRONG)" in as_text(told)


def test_the_end_to_end_time_is_compared_with_a_raw_copy() -> None:
    told = report(replace(GPU, end_to_end=Timing((3.0,)), raw_copy=Timing((2.0,))))
    assert told["raw_copy_ms"]["p50"] == 2.0
    assert "raw copy           2.000 ms for the same bytes in one piece; end to end takes 1.50 × as long" in wide(told)
    assert report(CPU)["raw_copy_ms"] is None and "raw copy" not in wide(report(CPU))


@pytest.mark.parametrize("changed", [0, 1, 2])
@pytest.mark.parametrize(("precision", "arithmetic"), [("fp16", "float16"), ("tf32", "tfloat32")])
def test_the_last_lines_compare_another_precision(precision: str, arithmetic: str, changed: int) -> None:
    labels = LABELS.copy()
    labels[:changed] += 1
    compared = ComparedRun(precision, arithmetic, Timing((2.0,)), labels)
    near = replace(STORED, margins=np.full(BATCH, 0.005), magnitudes=np.full(BATCH, 5, np.float32))
    outcome = replace(GPU, end_to_end=Timing((5.0,)), compared=compared)
    agreement = compare_labels(labels[:40], near, "stored float64 reference", arithmetic)
    told = report(outcome, compared=agreement)
    other = told["compare"]
    assert (other["precision"], other["gain"], other["compared"]) == (precision, 2.5, 40)
    assert len(other["differences"]) == changed
    first, *others = wide(told).split("\n\n")[-1].splitlines()
    assert first == (
        f"--precision {precision} takes 2.000 ms end to end, 2.50 × as fast, and "
        f"{changed} label{'' if changed == 1 else 's'} of 40 compared differ from the reference"
    )
    assert len(others) == changed and all("float64 margin 0.005 (near-tie)" in line for line in others)
    assert report(GPU)["compare"] is None and "--precision" not in as_text(report(GPU))


@pytest.mark.parametrize(("images", "more"), [(1, ""), (6, ""), (7, ", …")])
def test_more_than_six_labels_end_in_an_ellipsis(images: int, more: str) -> None:
    told = report(replace(GPU, labels=LABELS[:images]))
    shown = ", ".join(told["first_labels"])
    assert len(told["first_labels"]) == min(images, 6)
    assert f"  first     {shown}{more}\n" in as_text(told)


@both
def test_report_names_network_device_and_layers(outcome: Outcome) -> None:
    told = report(outcome)
    assert (told["schema"], told["precision"], told["batch"]) == ("lenet5-inference/report/4", "fp32", BATCH)
    assert told["network"] == {"name": "lenet5", "input_shape": [1, 28, 28]} and told["device"] == outcome.device
    assert [layer["name"] for layer in told["layers"]] == ["conv1+relu1+pool1", "fc1"]


def test_precision_is_named_by_the_arithmetic_type() -> None:
    names = {"float64": "fp64", "float32": "fp32", "float16x2": "fp32x", "tfloat32": "tf32", "float16": "fp16"}
    for dtype, name in names.items():
        told = report(replace(GPU, arithmetic=dtype))
        assert told["precision"] == name and f"lenet5 in {name} on {BATCH} images" in as_text(told)


@both
def test_json_round_trip(outcome: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = report(outcome)
    write_json(told, tmp_path / "report.json")
    # parse_constant is called for constants that JSON does not have, such as NaN.
    assert json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail) == told
    write_json(told, None)
    assert json.loads(capsys.readouterr().out) == told


def test_percentiles() -> None:
    told = report(GPU)
    expected = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "min": 1.0, "runs": 100}
    assert told["end_to_end_ms"] == {**expected, "samples": [*range(100, 0, -1)]}
    on_card = {"p50": 0.5, "p90": None, "p99": None, "min": 0.5, "runs": 2, "samples": [0.5, 0.7], "images": 40}
    assert told["layers"][0]["samples"] == [2.0, 3.0, 4.0]
    assert told["on_card_ms"] == on_card
    assert told["images_per_s"] == pytest.approx(BATCH / 50e-3)
    assert "p50 50.000 ms, p90 90.000 ms, p99 99.000 ms over 100 runs" in as_text(told)


@pytest.mark.parametrize(
    ("runs", "told", "untold"),
    [(1, [], [90, 99]), (9, [], [90, 99]), (10, [90], [99]), (99, [90], [99]), (100, [90, 99], [])],
)
def test_a_percentile_needs_enough_runs(runs: int, told: list[int], untold: list[int]) -> None:
    """The 99th percentile needs a hundred runs; otherwise it is null in JSON and missing in the text."""
    timing = Timing(tuple(float(ms) for ms in range(1, runs + 1)))
    layers = (layer_with(timing),)
    found = report(replace(GPU, end_to_end=timing, on_card=timing, raw_copy=timing, layers=layers, op_times=layers))
    for name in ("end_to_end_ms", "on_card_ms", "raw_copy_ms"):
        assert all(found[name][f"p{q}"] is not None for q in (50, *told))
        assert all(found[name][f"p{q}"] is None for q in untold)
    assert (found["layers"][0]["spread_ms"] is None) == (found["op_times"][0]["spread_ms"] is None) == (90 in untold)
    text = wide(found)
    assert ("p50" in text) == (f"over {runs} runs (" in text) == (runs > 1) and "None" not in text
    assert ("± ms" in text) == (90 in told)
    assert all(f"p{q}" in text for q in told) and not any(f"p{q}" in text for q in untold)


@both
def test_a_single_run_is_one_plain_figure(outcome: Outcome) -> None:
    once = (layer_with(Timing((2.5,))),)
    text = wide(report(replace(outcome, end_to_end=Timing((12.5,)), layers=once, op_times=once)))
    assert re.search(r"^  end to end +12\.500 ms \(", text, re.MULTILINE)
    assert not re.search(r"±|\bp\d\d\b|over \d+ run", text)
    head, row = text[text.index("  layer ") :].splitlines()[:2]
    assert len(head) == len(row) and head.split() == ["layer", "kernel", "ms", "GFLOP", "TFLOP/s", "GB/s", "share"]


def test_start_up_time_is_the_sum_of_its_parts() -> None:
    """``once_own_ms`` excludes the parts that any program with NumPy and CuPy needs."""
    told, text = report(GPU), wide(report(GPU))
    assert told["one_off_ms"] == ONCE
    assert (told["once_ms"], told["once_own_ms"], told["command_ms"]) == (1010.0, 440.0, 2345.6)
    assert "  once               start 50 ms, import 300 ms, numpy 120 ms" in text
    assert "1,010 ms from the start of the process to the first image, 440 ms beyond NumPy, CuPy and the" in text
    assert "  whole command      2.35 s so far" in text


def test_layer_figures() -> None:
    first, second = report(GPU)["layers"]
    assert (first["ms"], first["share"]) == pytest.approx((3.0, 0.75))
    assert (first["gflop"], first["tflops"], first["gbytes_per_s"]) == pytest.approx((6.0, 2.0, 3.0))
    assert second["share"] == pytest.approx(0.25) and report(GPU)["op_times"][0]["share"] is None
    assert "75.0%" in as_text(report(GPU))


def test_a_layer_that_took_no_time_is_no_division_by_zero() -> None:
    instant = layer_with(Timing((0.0,)))
    assert "0.0000" in as_text(report(replace(GPU, layers=(instant,))))


def test_every_time_says_whether_it_includes_transfers() -> None:
    text = wide(report(GPU))
    for start in ("Layers ", "  Op times ", "  on the card "):
        assert re.search(rf"^{start}.*no transfers", text, re.MULTILINE), start
    assert re.search(r"^  end to end .*transfers included", text, re.MULTILINE)
    assert re.search(r"^  in chunks, traced +H2D .* kernels .* D2H ", text, re.MULTILINE)
    assert "transfers" not in as_text(report(CPU))


@pytest.mark.parametrize("limit", TIMELINES)
def test_the_limit_is_the_last_line(limit: str) -> None:
    use = pipeline_usage(TIMELINES[limit])
    told = report(replace(GPU, usage=use, limit=describe_bottleneck(use)))
    assert wide(told).splitlines()[-1].startswith(f"limited by {limit}: ")
    assert told["pipeline"]["limit"] in ("copy", "compute", "enqueue") and told["limit"] == describe_bottleneck(use)


@both
def test_text_is_plain(outcome: Outcome) -> None:
    text = check_widths(as_text, report(outcome))
    assert not re.search(r"[^\n\x20-\uffff]", text) and not re.search(r"\bnan\b|\binf\b|None", text)
    assert outcome.device["name"] in text and f"Accuracy: {BATCH} / {BATCH} correct = 100.00%" in text
    assert ("chunks were cut" in text) is (outcome is GPU)


def test_80_columns_have_room_for_the_main_figures_of_a_long_name() -> None:
    timing = Timing(tuple(0.3507 + 0.0001 * run for run in range(20)))
    layer = layer_with(timing, "conv1+relu1+pool1+conv2+relu2+pool2", "register-patch")
    lines = as_text(report(replace(GPU, layers=(layer,), op_times=()))).splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("  layer "))
    assert lines[at].split() == ["layer", "kernel", "ms", "±", "ms", "TFLOP/s", "GB/s", "share"]
    assert lines[at + 1].split()[:2] == ["conv1+relu1+pool1+", "register-patch"]
    assert lines[at + 2 : at + 4] == ["  conv2+relu2+pool2", "  (--wide adds: GFLOP)"]


def test_json_has_lists_of_numbers_in_one_line(tmp_path: Path) -> None:
    told = report(GPU, data=replace(DATA, source="[\n 1,\n 2\n]"))
    write_json(told, tmp_path / "report.json")
    text = (tmp_path / "report.json").read_text()
    assert '"samples": [2.0, 3.0, 4.0]' in text
    assert json.loads(text) == json.loads(json.dumps(told))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("ms", [0.0, 5e-324, 1e-310, 1e308])
def test_extreme_times_give_finite_figures(ms: float, tmp_path: Path) -> None:
    timing = Timing((ms,) * 20)
    layers = (layer_with(timing),)
    compared = ComparedRun("fp16", "float16", timing, LABELS)
    outcome = replace(GPU, end_to_end=timing, on_card=timing, raw_copy=timing, layers=layers, op_times=layers)
    told = report(replace(outcome, compared=compared), compared=AGREED)
    write_json(told, written := tmp_path / "report.json")
    assert json.loads(written.read_text(), parse_constant=pytest.fail) == told
    assert not [fault for fault in mistakes(told) if ".settings" not in fault]
    assert not re.search(r"\b(nan|inf|None)\b", as_text(told))


def test_the_schema_names_every_way_of_images_to_the_card() -> None:
    assert {*get_args(split_annotated_type(record_fields(GpuSettings)["images"]).kind)} == {
        DIRECT,
        AT_ONCE,
        "copied in chunks",
    }
