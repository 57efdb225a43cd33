"""Test ``sweep``: its grid, skipped points, interrupted sweeps, output, stored results and errors."""

import json
from pathlib import Path

import pytest

from app.base.errors import UserError
from app.base.precision import SHORT
from app.drawing import svg
from app.kernels import registry
from app.kernels.problems import ConvProblem, Problem
from app.lab.bench.compiling import WrongResult, recoverable_error_reason
from app.lab.sweep import job, pipeline, report
from app.lab.sweep.grid import CannotRun, Target, measure_all, parse_settings
from app.lab.sweep.report import as_document, as_text
from app.network.graph import network_graph
from app.planning import tuning
from app.planning.tuning import TunedResult, Tuning
from tests.support.schemas import check_widths, mistakes
from tests.support.sweep_for_tests import ARCH, CARD, PROBLEM, RIVAL, ROW, failing, measured, request, swept, target


@pytest.fixture(autouse=True)
def temporary_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "SHIPPED", tmp_path / "shipped")


# --- the grid --------------------------------------------------------------------------------------------------------


def test_parse_settings() -> None:
    assert parse_settings([], ROW) == ROW.tunables
    assert parse_settings(["DEPTH=2,1,2"], ROW) == {"TILE": (8, 12, 16, 64), "DEPTH": (2, 1)}


@pytest.mark.parametrize("text", ["TILE", "TILE=", "TILE=0", "TILE=-8", "TILE=8,,16", "TILE=8.5", "TILE=x", "WIDTH=8"])
def test_bad_settings(text: str) -> None:
    with pytest.raises(UserError, match="TILE" if "TILE" in text else "choose one of TILE, DEPTH"):
        parse_settings([text], ROW)


def test_defaults_come_first_and_refused_points_are_counted_by_reason() -> None:
    found = target()
    assert found.grid[0] == found.default == {"TILE": 24, "DEPTH": 8}
    assert found.grid[1:] == [
        {"TILE": tile, "DEPTH": depth} for tile, depth in [(8, 4), (8, 8), (12, 4), (16, 4), (16, 8)]
    ]
    reasons = {(skipped["count"], skipped["reason"]) for skipped in found.skipped}
    shared = "needs 262,144 bytes of shared memory, a block has at most 232,448 on sm_90a"
    assert reasons == {(1, "TILE 12 is no multiple of DEPTH 8"), (2, shared)}


def test_the_best_known_point_is_tried_again() -> None:
    known = Tuning({tuning.tuning_key(PROBLEM): {"swept": TunedResult({"TILE": 20, "DEPTH": 4}, 1.0, 100)}})
    found = target(known, tiles=(8,), depths=(8,))
    assert found.grid == [{"TILE": tile, "DEPTH": depth} for tile, depth in [(24, 8), (20, 4), (8, 8)]]


# --- measuring -------------------------------------------------------------------------------------------------------


def test_every_point_is_measured_and_the_best_found() -> None:
    found = target()
    done: list[Target] = []
    measure_all([found], measured(), done.append)
    assert found.best_point is not None and found.best_point["parameters"] == {"TILE": 12, "DEPTH": 4}
    assert found.default_point is not None and found.default_point["ms"] == pytest.approx(2.24)
    assert done == [found] and found.finished == len(found.grid) == 6
    rates = {point["tflops"] * point["ms"] * 1e9 for point in found.points}
    assert [*rates] == pytest.approx([PROBLEM.flops * found.images] * len(rates))


def test_points_that_fail_are_left_out() -> None:
    def fail(parameters: dict[str, int]) -> None:
        failing(WrongResult("image 3 is wrong"), tile=12)(parameters)
        failing(CannotRun("does not compile"), tile=16)(parameters)

    found = target()
    measure_all([found], measured(fail), lambda _: None)
    assert found.best_point is not None and found.best_point["parameters"] == {"TILE": 8, "DEPTH": 4}
    assert found.wrong == [{"parameters": {"TILE": 12, "DEPTH": 4}, "reason": "image 3 is wrong"}]
    assert found.skipped[-1]["count"] == 2 and len(found.points) == 3 and found.finished == 6


def test_an_interrupted_sweep_keeps_finished_points(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = request(f"--conv swept --json {tmp_path}/sweep.json")
    with pytest.raises(UserError, match="interrupted after 4 of 12 points"):
        job.run_sweep(asked, [target(), target()], [], CARD, measured(failing(KeyboardInterrupt, tile=16)))
    out = capsys.readouterr().out
    assert "interrupted after 4 of 12 points" in out and "best: TILE=12 DEPTH=4: 1.0000 ms" in out
    assert tuning.load(CARD).entries[tuning.tuning_key(PROBLEM)]["swept"] == TunedResult(
        {"TILE": 12, "DEPTH": 4}, 1.0, 100
    )
    report = json.loads((tmp_path / "sweep.json").read_text())
    assert not mistakes(report)
    assert report["schema"] == "lenet5-inference/sweep/1" and (report["finished"], report["total"]) == (4, 12)
    with pytest.raises(UserError, match="interrupted after 0 of 6 points"):
        job.run_sweep(request(), [target()], [], CARD, measured(failing(KeyboardInterrupt)))
    assert capsys.readouterr().out == ""


def test_report_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert job.run_sweep(request(), [target()], ["a note"], CARD, measured()) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "TILE DEPTH ms" in out and "12 4 1.0000 " in out and "2.240 default " in out
    assert "default: 2.2400 ms, gain 2.240 ×" in out and "note: a note" in out and "--fused" in out
    assert "skipped TILE=64 DEPTH=4 and 1 more: needs 262,144 bytes" in out
    assert job.run_sweep(request(), [target()], [], CARD, measured(failing(WrongResult("image 0")))) == 1
    assert "WRONG TILE=12 DEPTH=4: image 0" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"no point could run \(does not compile"):
        job.run_sweep(
            request(), [target()], [], CARD, measured(failing(CannotRun("does not compile: too much shared data")))
        )


def test_the_tables_fit_the_terminal() -> None:
    found = swept(tiles=tuple(range(4, 40)), depths=(1, 2, 4))
    found.rival, found.rival_result = (RIVAL, {"TILE": 8}), TunedResult({}, 1.0, 100)
    text = check_widths(as_text, as_document(request(), [found], [], CARD, "table.json"))
    assert "± ms" in text and "TFLOP/s" in text and "auto so far: rival TILE=8: 1.0000 ms" in text
    assert "… and 44 slower ones" in text


def test_json_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert job.run_sweep(request("--conv swept --json -"), [target()], [], CARD, measured()) == 0
    (layer,) = json.loads(capsys.readouterr().out)["layers"]
    assert layer["best"] == {"TILE": 12, "DEPTH": 4} and layer["gain"] == pytest.approx(2.24)
    assert [point["ms"] for point in layer["points"]] == sorted(point["ms"] for point in layer["points"])


@pytest.mark.parametrize("stored", [{}, {PROBLEM: {"rival": TunedResult({}, 9.0, 100)}}], ids=["untimed", "timed"])
def test_the_kernel_of_auto_is_measured_in_the_same_run(
    stored: dict[Problem, dict[str, TunedResult]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If only the swept kernel had a time from this run, ``auto`` would choose it, even if it is slow."""
    monkeypatch.setattr(registry, "TABLES", {"conv": ["tests"]})
    monkeypatch.setattr(registry, "module_variants", lambda _: [ROW, RIVAL])
    tuning.store(CARD, stored)
    found = target(tuning.load(CARD), tiles=(8,), depths=(4,))
    assert found.rival == (RIVAL, {}) and found.rival_result is None
    assert job.run_sweep(request(), [found], [], CARD, measured(rival_ms=0.5)) == 0
    assert tuning.load(CARD).choose_kernel(PROBLEM, ARCH) == (RIVAL, {})


# --- the command -----------------------------------------------------------------------------------------------------


def test_swept_problems_are_those_of_a_plan() -> None:
    graph = network_graph("lenet5")
    variant = registry.find_variant("conv", "register-tiled")
    assert variant is not None
    alone = job.layer_problem(graph, "conv1", variant, ARCH, "fp32", fused=False)
    fused = job.layer_problem(graph, "conv1", variant, ARCH, "fp32", fused=True)
    assert alone == ConvProblem(1, 28, 28, 32, 5, input_dtype="uint8")
    assert fused == ConvProblem(1, 28, 28, 32, 5, input_dtype="uint8", activation="relu", pool=2)


def test_a_kernel_for_sparse_filters_is_swept_with_sparse_filters() -> None:
    targets, notes = job.find_targets(request("--conv warpgroup-sparse"), network_graph("lenet5"), ARCH, Tuning())
    (target,) = targets
    assert target.layer == "conv2" and isinstance(target.problem, ConvProblem) and target.problem.sparse
    assert notes[0] == "warpgroup-sparse was timed with 2:4 sparse filters" and "conv1 left out" in notes[1]


@pytest.mark.parametrize(
    ("name", "asked", "dtype"),
    [
        ("shared-tile", "", "float32"),
        ("shared-tile", "--precision fp16", "float16"),
        ("half2", "", "float16"),
        ("tensor-core", "", "float16"),
        ("tensor-core", "--precision tf32", "tfloat32"),
    ],
)
def test_a_kernel_is_swept_in_its_type_or_the_chosen_one(name: str, asked: str, dtype: str) -> None:
    arguments = request(f"--conv {name} {asked}")
    targets, _ = job.find_targets(arguments, network_graph("lenet5"), ARCH, Tuning())
    assert [target.problem.dtype for target in targets] == [dtype] * 2
    assert as_document(arguments, targets, [], CARD, None)["precision"] == SHORT[dtype]


def cuda_error(status: int) -> Exception:
    """Return an error like CuPy's, which cannot be made without a card."""
    return type("CUDADriverError", (RuntimeError,), {"status": status})(f"error {status}")


# Output of the compiler → reason.
LOGS = {
    "error: no": "no",
    'a.cu(3): error: static assertion failed with "BM too small"\n  more': "BM too small",
    "ptxas error   : Entry function 'f' uses too much shared data\n": "Entry function 'f' uses too much shared data",
}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        *((RuntimeError(f"a.cu does not compile\n{log}"), f"does not compile: {LOGS[log]}") for log in LOGS),
        (cuda_error(701), "error 701"),
        (cuda_error(700), None),  # an illegal address: the card's context is lost
        (ValueError("a bug"), None),
    ],
)
def test_only_errors_of_one_kernel_are_a_reason(error: Exception, reason: str | None) -> None:
    assert recoverable_error_reason(error) == reason


# --- the pipeline ----------------------------------------------------------------------------------------------------


def test_pipeline_grid() -> None:
    found = pipeline.pipeline_grid(1000, (4, 100))
    assert found == [(streams, chunk) for chunk in (100, 250, 500, 1000) for streams in range(1, 9)]


@pytest.mark.parametrize("stop", [None, 5])
def test_pipeline_points(stop: int | None) -> None:
    def measure(streams: int, chunk: int) -> pipeline.Figures | None:
        if streams == stop:
            raise KeyboardInterrupt
        return None if streams == 2 else {"ms": 10.0 / streams + chunk, "p90_ms": 1.0, "overlap": 0.5}

    grid = pipeline.pipeline_grid(250, (4, 25))
    points = pipeline.measure_all(grid, measure)
    assert len(points) == (16 if stop is None else 4)
    report = pipeline.as_document(request("--pipeline"), CARD, points, len(grid), (4, 25))
    assert not mistakes(report)
    fastest = 8 if stop is None else 4
    assert report["best"] and (report["best"]["streams"], report["best"]["chunk"]) == (fastest, 25)
    assert report["gain"] == pytest.approx(27.5 / (25 + 10 / fastest))
    text = check_widths(pipeline.as_text, report)
    chunk25, share25 = (line.split()[1:] for line in text.splitlines() if line.split()[:1] == ["25"])
    assert chunk25[:4] == ["35.00", "-", "28.33", "27.50"] and share25[:3] == ["50%", "-", "50%"]
    assert "does not fit" in text and f"best: --streams {fastest} --chunk 25" in text
    assert ("interrupted after 4 of 16 points" in text) == (stop is not None)


# --- charts ----------------------------------------------------------------------------------------------------------


def test_heat_map_begins_with_the_most_important_parameter() -> None:
    heat_map = report.layer_heat_map(swept())
    assert heat_map is not None
    *names, ms = heat_map
    assert names == ["TILE", "DEPTH"] and {*ms} < {(tile, depth) for tile in (8, 12, 16, 24) for depth in (4, 8)}
    assert ms[12, 4] == 1.0 and (12, 8) not in ms


def test_heat_map_of_one_parameter_and_of_none() -> None:
    only = report.layer_heat_map(swept(depths=(8,)))
    assert only is not None and only[:2] == ("", "TILE") and {*only[2]} == {(0, 8), (0, 16), (0, 24)}
    assert report.layer_heat_map(swept(tiles=(24,), depths=(8,))) is None
    assert report.layer_heat_map(target()) is None


def test_heat_maps_are_written(tmp_path: Path) -> None:
    svg.create_chart_folder(tmp_path / "new")
    report.draw_heat_maps(tmp_path / "new", "lenet5", [swept(), swept(depths=(8,))])
    grid = [(streams, chunk) for streams in (1, 2, 3) for chunk in (500, 1000)]
    points = pipeline.measure_all(grid, lambda streams, chunk: {"ms": chunk / streams})
    pipeline.draw_pipeline_heat_map(request(f"--pipeline --plot {tmp_path / 'new'}"), points)
    written = {path.name: path.read_text("utf-8") for path in (tmp_path / "new").iterdir()}
    assert written.keys() == {"sweep_swept_lenet5_conv1_heat.svg", "sweep_pipeline_lenet5_heat.svg"}
    assert "images a chunk 500, streams 3: 167 ms" in written["sweep_pipeline_lenet5_heat.svg"]
