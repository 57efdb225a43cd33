"""Test what graph, networks and kernels print, and that commands which measure need a GPU."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from app import VERSION
from app.base.errors import UserError
from app.base.precision import SHORT
from app.cli import main
from app.cuda.compiler import ARCHITECTURES
from app.files import shipped
from app.kernels.registry import VARIANTS
from app.kernels.train.train import TRAINING_KERNELS
from app.ladder.stored import FIGURES, INSTRUCTIONS
from app.network.definitions import NETWORKS
from app.network.graph import find_network
from app.network.toml import read_network
from app.network.weights import load_weights, save_weights
from app.planning.few_images import PRODUCTS
from app.tools import kernels, networks, resources
from tests.support.networks_for_tests import random_graph
from tests.support.schemas import mistakes, printed_wide
from tests.support.shell import Refuses, listing

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


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The program and pyproject.toml take it from one place."""
    with pytest.raises(SystemExit) as leaving:
        main(["--version"])
    assert leaving.value.code == 0 and capsys.readouterr().out == f"lenet5-inference {VERSION}\n"
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in project and 'version = { attr = "app.VERSION" }' in project


NEEDS_A_GPU = (
    *("bench", "bench --network k7 --batches 10,100 --only direct,unrolled --l2 warm --noise 0.05", "bench --peers"),
    *("bench --shape 12,33,31,24,5,2 --batch 10", "bench --plot plots"),
    *("sweep --conv shared-tile", "sweep --conv shared-tile --layer conv2 --set TILE=8,16", "sweep --conv half2"),
    *("sweep --fc register-tiled --network fa19 --precision fp32", "sweep --conv tensor-core --precision tf32"),
    *("sweep --fc shared-tiled --network mlp --fused", "sweep --pipeline --batch 100 --plot plots"),
    "ladder --network mlp",
    *("profile", "profile --batch 10 --conv conv1=direct --precision fp16 --no-fuse --counters"),
)


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        *((command, f"{command.split()[0]} needs an NVIDIA GPU: there is none") for command in NEEDS_A_GPU),
        ("precompile", "there is none: name an architecture with --arch, one of sm_75, .*sm_90a"),
        ("--device cuda", "--device cuda: there is none; use --device cpu, or auto"),
    ],
)
def test_without_a_gpu(
    command: str, wrong: str, workdir: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect an error of one line with the reason, and no folder for plots."""
    monkeypatch.setattr("app.cuda.device.why_no_gpu", lambda *_: "there is none")
    refuses(command, wrong)
    assert listing(workdir) == {}


def test_graph(capsys: pytest.CaptureFixture[str]) -> None:
    older = f"--arch sm_75 --weights {shipped.find_shipped_weights('lenet5')}"
    options = ("", "--no-fuse", "--conv direct", older, "--conv conv2=shared-tile")
    fused, separate, direct, older, mixed = (printed_wide(f"graph {given}", capsys) for given in options)
    assert "\n  conv1    conv2d   32 x 24 x 24         800  0.9216            76,864\n" in fused
    biased = printed_wide("graph --network mlp", capsys)  # 784 x 100 + 100, and 100 x 10 + 10
    counts = [re.findall(r" ([1-9][\d,]*) +\d+\.\d{4}", printed) for printed in (fused, biased)]
    assert counts == [["800", "51,200", "131,072", "1,280", "184,352"], ["78,500", "1,010", "79,510"]]
    assert "conv1+relu1+pool1+conv2+relu2+pool2" in fused
    assert "conv1+relu1" not in separate and len(separate.splitlines()) > len(fused.splitlines())
    convolutions = [line.split()[1] for line in direct.splitlines() if line.strip().startswith(("conv1+", "conv2+"))]
    assert convolutions == ["direct", "direct"]
    assert "launches on sm_75" in older
    assert "shared-tile" in mixed and "shared-tile" not in fused


def test_networks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "networks.json"
    lines = printed_wide(f"networks --json {target}", capsys).splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.split()[0] in NETWORKS}
    assert list(rows) == list(NETWORKS)
    correct = load_weights().expected_correct[10_000]
    share = f"{correct / 10_000:.2%}"
    assert rows["lenet5"][1:] == ["1", "x", "28", "x", "28", "11", "184,352", "7.7851", share, "of", "10,000"]
    # Sums by hand: 300 + 7,200 + 20,184 x 160 + 160 + 1,600 + 10; 784 x 100 + 100 + 1,000 + 10.
    assert [rows[name][7] for name in ("fa19", "mlp")] == ["3,238,710", "79,510"]
    layers = "resize size=70, conv2d maps=12 kernel=5, tanh, maxpool window=2, conv2d maps=24 kernel=5"
    assert any(layers in line for line in lines)
    document = json.loads(target.read_text())
    assert not mistakes(document)
    text = {row["name"]: row for row in document["networks"]}
    assert text["lenet5"]["accuracy"] == {"weights": "lenet5_fashion.h5", "images": 10_000, "correct": correct}
    assert text["minidnn86"]["layers"][0]["settings"] == {"size": 86}
    assert text["k7"]["layers"][-1]["output"] == []
    assert main(["networks", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(target.read_text())


def test_networks_prints_one_network_and_its_toml(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["networks", "mlp_500", "--toml"]) == 0
    path = tmp_path / "mlp.toml"  # a listed name, but not the listed network
    path.write_text(capsys.readouterr().out.replace("mlp_500", "mlp"))
    assert read_network(path) == replace(find_network("mlp_500"), name="mlp")
    assert main(["networks", str(path), "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["networks"]
    assert row["name"] == "mlp" and row["parameters"] == 397_510 and row["accuracy"] is None
    text = path.read_text().replace("outputs = 500", "outputs = 500\nbias = true")
    path.write_text(re.sub("^summary = .*\n", "", text, flags=re.M))
    assert main(["networks", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "summary" in text and "" not in lines, "no line stands for the summary that is missing"
    assert lines[1].split() == ["mlp", "1", "x", "28", "x", "28", "6", "397,510", "0.7945", "-"]
    assert "linear outputs=500 bias=True, sigmoid" in " ".join(map(str.strip, lines))


@pytest.mark.parametrize("promise", [{}, {100: 93, 1000: 921}])
def test_networks_tell_what_the_shipped_weights_promise(
    promise: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row has the parameters of the weights, here without biases, and no accuracy if they promise none."""
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    graph = random_graph(NETWORKS["mlp"], bias=False)
    path = shipped.weights_path("mlp")
    save_weights(path, graph.parameters, network=graph.network, expected_correct=promise)
    shipped.record_checksum(path)
    row = networks.network_entry(graph.network, networks.shipped_weights()["mlp"])
    assert row["parameters"] == 79_400
    assert row["accuracy"] == ({"weights": path.name, "images": 1000, "correct": 921} if promise else None)
    path.write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"mlp_fashion.h5 does not match its checksum in SHA256SUMS"):
        networks.shipped_weights()


def test_a_network_without_a_recipe_is_listed_with_its_biases() -> None:
    network = replace(NETWORKS["mlp"], name="no_recipe")
    found, listed = (networks.network_entry(one, None)["parameters"] for one in (network, NETWORKS["mlp"]))
    assert found == listed


def test_every_kernel_is_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = printed_wide(f"kernels --json {tmp_path / 'kernels.json'}", capsys)
    for variant in VARIANTS:
        line = next(line for line in out.splitlines() if variant.source in line)
        assert line.split()[:2] == [str(variant.step), variant.name]
        for text in (*(SHORT.get(dtype, dtype) for dtype in variant.dtypes), f"sm_{variant.min_arch}", variant.system):
            assert text in line
        for text in (*variant.summary.split(), *variant.limits.split(), *variant.tunables):
            assert text in out
    for kernel in TRAINING_KERNELS:
        line = next(line for line in out.splitlines() if kernel.source in line)
        assert kernel.summary in line and kernel.system in line
    document = json.loads((tmp_path / "kernels.json").read_text())
    assert not mistakes(document)
    assert {(k["operation"], k["name"]) for k in document["kernels"]} == {(v.operation, v.name) for v in VARIANTS}
    assert [kernel["name"] for kernel in document["training"]] == [kernel.name for kernel in TRAINING_KERNELS]

    assert " ".join(out.split()).count("only for few images, or by name") == len(PRODUCTS), "plans take these, too"
    end = " ".join(out.splitlines()[-2:])
    for text in ("--conv", "--fc", "--pool", "conv1=", "auto", "measured faster", "highest step"):
        assert text in end


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
    few[:] = [variant for variant in few if variant.name == "direct"]
    assert main(["kernels", "--resources", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["arch"] == "sm_90a"


def test_instructions(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = json.loads((FIGURES / INSTRUCTIONS).read_text())["instructions"][:9]
    monkeypatch.setattr(kernels.machine_code, "measure_hottest_loops", lambda *_: rows)
    out = printed_wide("kernels --instructions", capsys)
    names = [f"{row['operation']} {row['name']}" for row in rows]
    for name, row in zip(names, rows, strict=True):
        cells = name.ljust(max(map(len, names))), row["layer"].ljust(max(len(one["layer"]) for one in rows))
        assert f"  {'  '.join(cells)}  {row['entry']} " in out


def test_every_kernel_has_an_example_that_it_serves() -> None:
    for variant in VARIANTS:
        problems = (problem for _, found in resources.example_problems(variant) for problem in found)
        assert any(variant.refusal_reason(problem, "sm_90a") is None for problem in problems), variant.source


def test_compiler_log_is_parsed_by_entry_point() -> None:
    assert resources.parse_assembler_log(LOG) == {
        "first": resources.CompiledFunction(126, 12_288, 16, 12, 20),
        "second": resources.CompiledFunction(12, 0, 0, 0, 0),
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


@pytest.mark.usefixtures("first_hundred")
def test_the_cpu_lists_the_convolutions_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LENET_CPU_ENGINE", "numpy")  # ONNX Runtime gives one time for the whole graph
    assert main(["--device", "cpu", "--batch", "5", "--json", "-"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    layers = {layer["name"]: layer["ms"] for layer in found["layers"]}
    assert {op["name"]: op["ms"] for op in found["op_times"]} == {name: layers[name] for name in ("conv1", "conv2")}
    assert len(layers) > 2
