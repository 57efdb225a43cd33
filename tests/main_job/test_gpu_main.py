"""Test the main job on a GPU, through the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.kernels import registry
from app.planning.plan import ExecutionPlan
from tests.support.schemas import check_described
from tests.support.shell import check_error

pytestmark = [pytest.mark.gpu, pytest.mark.fashion_mnist]


def run_report(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Run the main job on the GPU and return its report; its accuracy check must pass."""
    path = tmp_path / "report.json"
    assert main(["--device", "cuda", "--repeat", "2", "--json", str(path), "--overwrite", *arguments]) == 0
    document: dict[str, Any] = json.loads(path.read_text())
    check_described(document)
    return document


# Options that choose each variant of a kernel for the whole application.
BY_NAME = [
    # In fp32x, kernels of warpgroups read features that another kernel scaled, so only conv2 or fc1 uses them.
    [
        option,
        f"{'conv2' if operation == 'conv' else 'fc1'}={row.name}" if row.instructions == "wgmma" else row.name,
        *others,
    ]
    for operation, option, *others in (("conv", "--conv"), ("gemm", "--fc"), ("pool", "--pool", "--no-fuse"))
    for row in registry.variants(operation)
]
OTHERS = [
    [],
    ["--precision", "fp32"],
    ["--precision", "fp32x"],
    ["--no-fuse"],
    ["--conv", "conv1=constant,conv2=direct", "--fc", "fc2=naive"],
    ["--latency"],
    ["--chunk", "999", "--streams", "7"],
]
COARSE = [["--precision", "fp16"], ["--precision", "tf32"], ["--precision", "fp16", "--conv", "half2"]]


@pytest.mark.parametrize("options", [*OTHERS, *COARSE, *BY_NAME], ids=" ".join)
def test_ten_thousand_images(options: list[str], tmp_path: Path) -> None:
    """Expect with every kernel in fp32 the labels of the float64 reference, and all figures of the report."""
    found = run_report(tmp_path, "--batch", "10000", *options)
    accuracy, agreement = found["accuracy"], found["agreement"]
    assert accuracy["passed"] and agreement["passed"] and agreement["compared"] == 10_000
    if found["precision"] in ("fp32", "fp32x"):
        assert not agreement["differences"] and accuracy["correct"] == accuracy["expected"] >= 9250
    else:
        assert abs(accuracy["correct"] - accuracy["expected"]) <= 10
    assert all(layer["ms"] > 0 for layer in found["layers"])
    paired = any("conv1" in layer["name"] and "conv2" in layer["name"] for layer in found["layers"])
    assert [op["name"] for op in found["op_times"]] == ([] if paired else ["conv1", "conv2"])
    assert found["raw_copy_ms"]["p50"] > 0
    assert found["compare"] is None
    assert found["on_card_ms"]["p50"] > 0 and found["end_to_end_ms"]["p50"] > 0
    assert 0 <= found["pipeline"]["overlap"] <= 1


@pytest.mark.parametrize(
    ("precision", "other"), [("auto", "fp16"), ("auto", "fp32"), ("auto", "tf32"), ("fp16", "fp32x"), ("fp32", "fp16")]
)
def test_compared_precision_equals_a_run_in_it(precision: str, other: str, tmp_path: Path) -> None:
    """``--compare`` reports what a run in the other precision does, and does not change the run's answers."""
    mine = ["--batch", "10000", "--precision", precision]
    found, plain = run_report(tmp_path, *mine, "--compare", other), run_report(tmp_path, *mine)
    same = ("precision", "agreement", "accuracy", "first_labels", "settings")
    assert {name: found[name] for name in same} == {name: plain[name] for name in same}
    alone = run_report(tmp_path, "--batch", "10000", "--precision", other)
    compare = found["compare"]
    assert compare["precision"] == other == alone["precision"] and compare["compared"] == 10_000
    assert compare["differences"] == alone["agreement"]["differences"]
    assert compare["end_to_end_ms"]["p50"] > 0 and compare["end_to_end_ms"]["runs"] == 2
    gain = found["end_to_end_ms"]["p50"] / compare["end_to_end_ms"]["p50"]
    assert compare["gain"] == pytest.approx(gain)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (
            "--precision fp16 --compare fp16",
            "--compare fp16: it would multiply as the run itself does, name another precision",
        ),
        ("--compare fp32x", "--compare fp32x: it would multiply as the run itself does, name another precision"),
        ("--batch 20000 --cycle --compare fp16", "--compare fp16 times one pass over the data: leave --cycle out"),
        ("--precision fp16 --conv half2 --compare fp32", "--compare fp32: it would multiply as the run itself"),
    ],
)
def test_impossible_comparisons_are_refused(options: str, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_error(main(["--device", "cuda", *options.split()]), *capsys.readouterr(), wrong)


def test_the_plain_run_plans_and_opens_one_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.main_job import gpu_run

    opened: list[str] = []
    real = gpu_run.GpuEngine

    def record_plan(execution: ExecutionPlan, **options: Any) -> Any:
        opened.append(execution.arithmetic)
        return real(execution, **options)

    monkeypatch.setattr(gpu_run, "GpuEngine", record_plan)
    run_report(tmp_path, "--batch", "100")
    assert opened == ["float16x2"]
    run_report(tmp_path, "--batch", "100", "--compare", "fp16")
    assert opened == ["float16x2", "float16x2", "float16"]


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_small_batches(batch: int, tmp_path: Path) -> None:
    assert run_report(tmp_path, "--batch", str(batch))["accuracy"]["total"] == batch


def test_training_images(tmp_path: Path) -> None:
    found = run_report(tmp_path, "--batch", "60000", "--split", "train")
    assert found["accuracy"]["total"] == 60_000 and found["accuracy"]["correct"] > 55_000


def test_a_million_images_in_constant_memory(tmp_path: Path) -> None:
    """Expect the device memory of two passes over the test images, and equal labels in every pass."""
    twice = run_report(tmp_path, "--batch", "20000", "--cycle")
    many = run_report(tmp_path, "--batch", "1000000", "--cycle")
    assert many["accuracy"]["correct"] == 50 * twice["accuracy"]["correct"]
    assert many["device_memory_bytes"] == twice["device_memory_bytes"]
