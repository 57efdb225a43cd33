"""``sweep --pipeline``, and the pictures of sweeps."""

from math import isnan
from pathlib import Path

import pytest

from app import figures
from app.bench.sweep import pipeline, plots
from tests.support.schemas import mistakes
from tests.support.sweep_for_tests import CARD, request, swept, target
from tests.support.widths import check_widths

# --- the pipeline ----------------------------------------------------------------------------------------------------


def test_pipeline_settings() -> None:
    found = pipeline.settings(1000, (4, 100))
    assert found == [(streams, chunk) for chunk in (100, 250, 500, 1000) for streams in range(1, 9)]


@pytest.mark.parametrize("stop", [None, 5])
def test_pipeline_points(stop: int | None) -> None:
    def measure(streams: int, chunk: int) -> pipeline.Figures | None:
        if streams == stop:
            raise KeyboardInterrupt
        return None if streams == 2 else {"ms": 10.0 / streams + chunk, "p90_ms": 1.0, "overlap": 0.5}

    grid = pipeline.settings(250, (4, 25))
    points = pipeline.measure_all(grid, measure)
    assert len(points) == (16 if stop is None else 4)
    report = pipeline.as_document(request("--pipeline"), CARD, points, len(grid), (4, 25))
    assert not mistakes(report)
    fastest = 8 if stop is None else 4
    assert (report["best"]["streams"], report["best"]["chunk"]) == (fastest, 25)
    assert report["gain"] == pytest.approx(27.5 / (25 + 10 / fastest))
    text = check_widths(pipeline.as_text, report)
    chunk25, share25 = (line.split()[1:] for line in text.splitlines() if line.split()[:1] == ["25"])
    assert chunk25[:4] == ["35.00", "-", "28.33", "27.50"] and share25[:3] == ["50%", "-", "50%"]
    assert "does not fit" in text and f"best: --streams {fastest} --chunk 25" in text
    assert ("interrupted after 4 of 16 points" in text) == (stop is not None)


# --- pictures --------------------------------------------------------------------------------------------------------


def test_the_parameter_that_matters_most_comes_first() -> None:
    field = plots.layer_field(swept())
    assert field is not None
    assert (field.down, field.across) == ("TILE", "DEPTH")
    assert (field.downs, field.acrosses) == ((8, 12, 16, 24), (4, 8))
    assert field.ms[1][0] == 1.0 and isnan(field.ms[1][1])


def test_one_parameter_and_none() -> None:
    only = plots.layer_field(swept(depths=(8,)))
    assert only is not None and (only.down, only.across, only.acrosses) == ("", "TILE", (8, 16, 24))
    assert plots.layer_field(swept(tiles=(24,), depths=(8,))) is None
    assert plots.layer_field(target()) is None


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib (the plot extra) is not installed")
    figures.prepare(tmp_path / "new")
    plots.draw_layers(tmp_path / "new", "lenet5", [swept(), swept(depths=(8,))])
    times = {(chunk, streams): chunk / streams for chunk in (500, 1000) for streams in (1, 2, 3)}
    plots.draw_pipeline(tmp_path / "new", "lenet5", 1000, times)
    written = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert written.keys() == {
        f"sweep_{what}_{kind}.png" for what in ("swept_lenet5_conv1", "pipeline_lenet5") for kind in ("heat", "3d")
    }
    assert all(content.startswith(b"\x89PNG") for content in written.values())
