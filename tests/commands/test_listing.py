"""``main.py kernels``: the listing, and what the compiler says of each kernel."""

import json
from pathlib import Path

import pytest

from app.bench import resources
from app.cli import main
from app.commands import kernels
from app.cuda.compiler import ARCHITECTURES
from app.kernels.registry import VARIANTS
from app.kernels.train.train import TRAINING_KERNELS
from app.kernels.variant import Variant
from app.precision import SHORT
from tests.support.schemas import mistakes
from tests.support.widths import printed_wide

LOG = """\
ptxas info    : 8 bytes gmem, 3200 bytes cmem[3]
ptxas info    : Compiling entry function 'first' for 'sm_75'
ptxas info    : Function properties for first
ptxas         .     16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Function properties for slowpath
ptxas         .     40 bytes stack frame, 1 bytes spill stores, 2 bytes spill loads
ptxas info    : Used 126 registers, used 1 barriers, 12288 bytes smem, 388 bytes cmem[0]
ptxas info    : Compile time = 1.000 ms
ptxas info    : Compiling entry function 'second' for 'sm_75'
ptxas info    : Function properties for second
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
\x00"""


def test_every_kernel_is_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = printed_wide(f"kernels --json {tmp_path / 'kernels.json'}", capsys)
    for variant in VARIANTS:
        line = next(line for line in out.splitlines() if variant.source in line)
        assert line.split()[:2] == [str(variant.step), variant.name]
        for told in (*(SHORT.get(dtype, dtype) for dtype in variant.dtypes), f"sm_{variant.min_arch}", variant.system):
            assert told in line
        for told in (*variant.summary.split(), *variant.limits.split(), *variant.tunables):
            assert told in out
    for kernel in TRAINING_KERNELS:
        line = next(line for line in out.splitlines() if kernel.source in line)
        assert kernel.summary in line and kernel.system in line
    document = json.loads((tmp_path / "kernels.json").read_text())
    assert document["schema"] == kernels.SCHEMA and not mistakes(document)
    assert {(k["operation"], k["name"]) for k in document["kernels"]} == {(v.operation, v.name) for v in VARIANTS}
    assert [kernel["name"] for kernel in document["training"]] == [kernel.name for kernel in TRAINING_KERNELS]

    end = " ".join(out.splitlines()[-2:])
    for told in ("--conv", "--fc", "--pool", "conv1=", "auto", "measured faster", "highest step"):
        assert told in end


def test_resources(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ("conv direct", "conv shared-constant", "gemm tensor-core", "gemm cublas")
    few = [variant for variant in VARIANTS if f"{variant.operation} {variant.name}" in names]
    monkeypatch.setattr(kernels, "VARIANTS", few)
    monkeypatch.setattr(kernels, "variants", lambda operation: [v for v in few if v.operation == operation])
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path))
    target = tmp_path / "resources.json"
    out = printed_wide(f"kernels --resources --arch sm_75 --json {target}", capsys)
    assert "compiled for sm_75" in out and "not compiled: needs sm_80 or later, this is sm_75" in out
    assert "the library's kernels alone" in out
    document = json.loads(target.read_text())
    assert not mistakes(document)
    direct, constant = (
        [entry for entry in document["resources"] if entry["name"] == name] for name in ("direct", "shared-constant")
    )
    assert [entry["layer"] for entry in direct] == ["conv1", "conv2"] and constant
    for entry in (*direct, *constant):
        assert 0 < entry["registers"] <= 255 and 0 < entry["blocks"] <= 16 and 0 < entry["occupancy"] <= 1
    assert all(entry["constant"] == 65_536 and entry["dynamic_shared"] > 0 for entry in constant)
    assert all(entry["constant"] == entry["dynamic_shared"] == 0 for entry in direct)
    assert main(["kernels", "--resources", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["arch"] == "sm_90a"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: f"{variant.operation}-{variant.name}")
def test_every_kernel_has_an_example_that_it_serves(variant: Variant) -> None:
    served = [
        any(variant.refusal(p, "sm_90a") is None for p in problems) for _, problems in resources.examples(variant)
    ]
    assert any(served)


def test_the_log_is_read_by_entry_point() -> None:
    assert resources.parse(LOG) == {
        "first": resources.Compiled(126, 12_288, 16, 12, 20),
        "second": resources.Compiled(12, 0, 0, 0, 0),
    }


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "arch", "blocks"),
    [
        (256, 32, 0, "sm_90a", 8),  # threads
        (256, 34, 0, "sm_90a", 6),  # registers, given by 256 a warp
        (128, 128, 12_288, "sm_90a", 4),
        (32, 16, 0, "sm_90a", 32),  # blocks
        (64, 16, 100 << 10, "sm_90a", 2),  # shared memory, with 1 KB of the system's
        (64, 16, 32 << 10, "sm_75", 2),  # where the system takes none
        (64, 16, 50 << 10, "sm_86", 1),
        (1024, 64, 0, "sm_86", 1),
        (1024, 255, 0, "sm_90a", 0),  # cannot be launched
    ],
)
def test_blocks_on_an_sm(threads: int, registers: int, shared: int, arch: str, blocks: int) -> None:
    assert resources.blocks_per_sm(threads, registers, shared, arch) == blocks


def test_limits_are_known_for_every_architecture() -> None:
    for arch in ARCHITECTURES:
        assert resources.blocks_per_sm(256, 32, 0, arch) > 0
