"""The commands beside the main job: their help, what graph and kernels print, what measuring needs."""

from __future__ import annotations

import re

import pytest

from app.cli import COMMANDS, main
from app.device import why_no_gpu
from app.kernels.registry import VARIANTS
from app.weights import BUNDLED
from tests.shell import check_error


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([*command.split(), "--help"])
    out = capsys.readouterr().out
    assert leaving.value.code == 0 and out.startswith(f"usage: main.py {command}".rstrip())
    assert "%(" not in out and "options:" in out


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (
            "",
            "--batch N --labels --conv NAME --fc NAME --pool NAME --latency --precision tf32 --no-fuse --json",
        ),
        ("graph", "--conv NAME --precision --arch NAME --no-fuse"),
        ("precompile", "--network NAME --precision --arch NAME --all"),
        ("kernels", "--resources --arch NAME --json FILE"),
        ("bench", "--network NAME --shape C,H,W,M,K,S --batches --only --l2 --noise --json FILE --plot DIR"),
        ("sweep", "--conv NAME --fc NAME --layer NAME --set --pipeline --json FILE --plot DIR"),
        (
            "train",
            "--network NAME --resume FILE --output --epochs --batch --seed --dropout --flip --json FILE --plot DIR",
        ),
        ("profile", "--batch N --conv NAME --streams N --trace FILE --counters --json FILE"),
    ],
)
def test_help_teaches(command: str, options: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    out = capsys.readouterr().out
    assert all(word in out for word in options.split())


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    for taught in ("examples:", "python main.py --batch 10000", "exit codes: 0 ", *COMMANDS):
        assert taught in out
    assert all(f"python main.py {name}" in out for name in COMMANDS)


@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")
@pytest.mark.parametrize(
    "command",
    [
        "bench",
        "bench --network k7 --batches 10,100 --only direct,unrolled --l2 warm --noise 0.05",
        "bench --shape 12,33,31,24,5,2 --batch 10",
        "sweep --conv shared-tile --layer conv2 --set TILE=8,16",
        "sweep --fc register-tiled --network fa19 --precision fp32",
        "sweep --pipeline --batch 100",
        "profile",
        "profile --batch 10 --conv conv1=direct --precision fp16 --no-fuse --counters",
    ],
)
def test_measuring_needs_a_gpu(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and the reason that the machine gives."""
    code = main(command.split())
    reason = " ".join(str(why_no_gpu()).split())
    check_error(code, *capsys.readouterr(), rf"(bench|sweep|profile) needs an NVIDIA GPU: {re.escape(reason)}")


def test_graph(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for more in ("", "--no-fuse", "--conv direct", f"--arch sm_75 --weights {BUNDLED}", "--conv conv2=shared-tile"):
        assert main(["graph", *more.split()]) == 0
        outputs.append(capsys.readouterr().out)
    fused, separate, direct, older, mixed = outputs
    assert "184,352" in fused and "conv1+relu1" in fused
    assert "conv1+relu1" not in separate and len(separate.splitlines()) > len(fused.splitlines())
    convolutions = [line.split()[1] for line in direct.splitlines() if line.strip().startswith(("conv1+", "conv2+"))]
    assert convolutions == ["direct", "direct"]
    assert "launches on sm_75" in older
    assert "shared-tile" in mixed and "shared-tile" not in fused


def test_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for row in VARIANTS:
        assert any(row.name in line for line in lines)
