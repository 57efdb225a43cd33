"""The commands beside the main job: their help, what graph and kernels print, what measuring needs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from app import VERSION
from app.cli import COMMANDS, main
from app.commands import networks
from app.cuda.device import why_no_gpu
from app.errors import UserError
from app.network import shipped
from app.network.definitions import NETWORKS
from app.network.weights import load_weights, save_weights
from app.text import WIDTH
from tests.commands.test_option_effects import RUN, WORK
from tests.support.networks_for_tests import random_graph
from tests.support.schemas import mistakes
from tests.support.shell import Refuses
from tests.support.widths import printed_wide

# What the help names as the values of these options, in every command that has them.
VALUES = {"--batch": " N", "--streams": " N", "--plot": " DIR", "--shape": " C,H,W,M,K,S", "--precision": " {.*tf32"}
VALUES |= dict.fromkeys(("--network", "--conv", "--fc", "--pool", "--layer", "--arch"), " NAME")
VALUES |= dict.fromkeys(("--json", "--resume", "--trace"), " FILE")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    with pytest.raises(SystemExit) as leaving:
        main([*command.split(), "--help"])
    out = capsys.readouterr().out
    assert leaving.value.code == 0 and out.startswith(f"usage: main.py {command}".rstrip())
    assert "%(" not in out and "options:" in out
    for option in WORK.get(command, " ".join(RUN)).split():
        assert re.search(f"^  {option}{VALUES.get(option, '')}\\b", out, re.MULTILINE), option
    assert all(len(line) <= WIDTH for line in out.splitlines())


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    for taught in ("examples:", "python main.py --batch 10000", "exit codes: 0 "):
        assert taught in out
    assert "\n".join(f"  {name:<12}{does}" for name, does in COMMANDS.items()) in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """pyproject.toml takes it from where the program does."""
    with pytest.raises(SystemExit) as leaving:
        main(["--version"])
    assert leaving.value.code == 0 and capsys.readouterr().out == f"lenet5-inference {VERSION}\n"
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in project and 'version = { attr = "app.VERSION" }' in project


NEEDS_A_GPU = (
    *("bench", "bench --network k7 --batches 10,100 --only direct,unrolled --l2 warm --noise 0.05"),
    "bench --shape 12,33,31,24,5,2 --batch 10",
    *("sweep --conv shared-tile", "sweep --conv shared-tile --layer conv2 --set TILE=8,16"),
    *("sweep --fc register-tiled --network fa19 --precision fp32", "sweep --pipeline --batch 100"),
    *("profile", "profile --batch 10 --conv conv1=direct --precision fp16 --no-fuse --counters"),
)


@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")
@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        *((command, f"{command.split()[0]} needs an NVIDIA GPU: {{}}") for command in NEEDS_A_GPU),
        ("precompile", "{}: name an architecture with --arch, one of sm_75, .*sm_90a"),
        ("--device cuda", "--device cuda: {}; use --device cpu, or auto"),
    ],
)
def test_without_a_gpu(command: str, wrong: str, refuses: Refuses) -> None:
    """One line, and the reason that the machine gives."""
    refuses(command, wrong.format(re.escape(" ".join(str(why_no_gpu()).split()))))


def test_graph(capsys: pytest.CaptureFixture[str]) -> None:
    older = f"--arch sm_75 --weights {shipped.find('lenet5')}"
    options = ("", "--no-fuse", "--conv direct", older, "--conv conv2=shared-tile")
    fused, separate, direct, older, mixed = (printed_wide(f"graph {given}", capsys) for given in options)
    assert "184,352" in fused and "conv1+relu1+pool1+conv2+relu2+pool2" in fused
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
    told = {row["name"]: row for row in document["networks"]}
    assert told["lenet5"]["accuracy"] == {"weights": "lenet5_fashion.h5", "images": 10_000, "correct": correct}
    assert told["minidnn86"]["layers"][0]["settings"] == {"size": 86}
    assert told["k7"]["layers"][-1]["output"] == []
    assert main(["networks", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(target.read_text())


@pytest.mark.parametrize("promise", [{}, {100: 93, 1000: 921}])
def test_networks_tell_what_the_shipped_weights_promise(
    promise: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Biases as they have them; '-' where there are none, or where they promise nothing."""
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    graph = random_graph(NETWORKS["mlp"], bias=False)
    path = shipped.weights_path("mlp")
    save_weights(path, graph.parameters, network="mlp", expected_correct=promise)
    shipped.record_checksums(path)
    row = networks.describe(graph.network, networks.shipped_weights()["mlp"])
    assert row["parameters"] == 79_400
    assert row["accuracy"] == ({"weights": path.name, "images": 1000, "correct": 921} if promise else None)
    path.write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"mlp_fashion.h5 is not the file that SHA256SUMS"):
        networks.shipped_weights()


def test_a_network_without_a_recipe_is_listed_with_its_biases() -> None:
    network = replace(NETWORKS["mlp"], name="no_recipe")
    assert networks.describe(network, None)["parameters"] == networks.describe(NETWORKS["mlp"], None)["parameters"]
