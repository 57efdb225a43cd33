"""Test ``check --counts``: loads counted without a GPU agree with the lessons' formulas and rank the kernel."""

import json
import re
from pathlib import Path

import pytest

from app.cli import main
from app.lab.user_kernel.row import find_named_variant, open_user_kernel
from app.lab.user_kernel.template import kernel_template
from app.ladder.card import EXAMPLE, layer_problems
from app.ladder.check.loads import BATCH, LAYERS, TYPE, count_loads
from app.ladder.counting import evaluate_counts
from app.ladder.formulas import formula_variables
from app.ladder.lessons import find_step
from tests.support.host_kernels import skip_without_compiler
from tests.support.shell import check_error


@pytest.fixture
def direct_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a kernel file in an empty current folder: a copy of ``direct``; return its path."""
    skip_without_compiler()
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "direct_copy.cu"
    path.write_text(kernel_template(find_named_variant("direct"), "direct_copy.cu"))
    return path


# These kernels load from global and constant memory, compute several images a block, and load four numbers at once from
# shared memory. A copy of ``direct`` is counted below.
@pytest.mark.parametrize(("operation", "name"), [("conv", "constant"), ("gemm", "naive"), ("gemm", "wide-loads")])
def test_counted_loads_equal_those_of_the_formulas(operation: str, name: str) -> None:
    skip_without_compiler()
    step = find_step(operation, name)
    assert step is not None
    layer, images = LAYERS[operation]
    problem = dict(layer_problems(EXAMPLE, operation, TYPE))[layer]
    wanted = evaluate_counts(
        step.lesson.counts, problem, formula_variables(step.row, problem, {}, BATCH, 132), step.row.instructions, None
    )
    found = count_loads(step.row, problem, images)
    assert found == pytest.approx({name: wanted[name] for name in found}, rel=1e-6)
    assert {*found} == {"global_loads", "shared_loads", "constant_loads"}


def test_shared_memory_of_a_size_known_at_run_time_is_counted() -> None:
    skip_without_compiler()
    found = count_loads(find_named_variant("conv:shared-tile"), dict(layer_problems(EXAMPLE, "conv", TYPE))["conv2"], 1)
    assert found["shared_loads"] == 2 * 32 * 5 * 5, "a pixel and a filter's weight for each multiply-add"


def test_output_of_the_kernel_is_not_taken_for_a_count(direct_copy: Path) -> None:
    said = 'printf("COUNTS 0 0 0\\n"); printf("more than a buffer holds");'
    direct_copy.write_text(direct_copy.read_text().replace("REAL sum = 0;", f"REAL sum = 0; {said}"))
    problem = dict(layer_problems(EXAMPLE, "conv", TYPE))["conv2"]
    with open_user_kernel(direct_copy) as row:
        assert count_loads(row, problem, 1)["global_loads"] == 1600


def test_a_copy_of_a_step_has_its_predicted_time(direct_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--shape", "1,7,9,3,3,1", "--device", "cpu"]
    assert main(["check", str(direct_copy), *shape, "--counts", "--json", "check.json"]) == 0
    text = capsys.readouterr().out
    assert "<-- yours" in text and "of lenet5, 10,000 images" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    places = json.loads(Path("check.json").read_text())["places"]
    assert [place["predicted_ms"] for place in places] == sorted(place["predicted_ms"] for place in places)
    found = {place["name"]: place for place in places}
    copy, step = ({**found[name], "name": ""} for name in ("direct_copy.cu", "02 direct"))
    assert copy == pytest.approx(step) and copy["global_loads"] == pytest.approx(2)
    assert found["03 shared-tile"]["global_loads"] < 0.2 < found["direct_copy.cu"]["global_loads"]


def test_a_wrong_kernel_is_not_ranked(direct_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    direct_copy.write_text(direct_copy.read_text().replace("REAL sum = 0;", "REAL sum = 1;"))
    assert (
        main(["check", str(direct_copy), "--shape", "1,7,9,3,3,1", "--device", "cpu", "--counts", "--json", "-"]) == 1
    )
    assert "places" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--pool direct --shape 2,8,8,2,2", "on conv2 (conv) or fc1 (gemm) of lenet5 in fp32, but direct computes"),
        ("--conv half2 --shape 1,7,9,3,3,1", "but half2 computes in float16, not float32: leave it out"),
    ],
)
def test_a_kernel_that_cannot_be_ranked_is_refused(options: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_compiler()
    code = main(["check", *options.split(), "--device", "cpu", "--counts"])
    check_error(code, *capsys.readouterr(), re.escape(said))
