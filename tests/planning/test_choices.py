"""Test how options become a plan's choices, and which kernels ``auto`` chooses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from app.base.errors import UserError
from app.base.precision import PRECISIONS
from app.cuda.compiler import ARCHITECTURES
from app.files import shipped
from app.kernels import registry
from app.kernels.problems import PairProblem
from app.layers import Tanh
from app.network.definitions import LENET5
from app.network.graph import Graph, find_network, network_graph
from app.network.toml import network_toml
from app.network.weights import load_weights, save_weights
from app.planning import kernel_selection, tuning
from app.planning.choices import load_graph
from app.planning.matching import Choices
from app.planning.plan import plan
from app.planning.tuning import REFERENCE_CARDS, Tuning
from tests.support.networks_for_tests import GENERAL
from tests.support.requests import named_choices, requested, resolved
from tests.support.shell import user_error

AUTO = dict.fromkeys(("conv", "gemm", "pool"), "auto")


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("", AUTO),
        ("--conv direct", AUTO | {"conv": "direct"}),
        ("--fc naive --pool shared", AUTO | {"gemm": "naive", "pool": "shared"}),
        ("--conv conv2=direct --fc fc1=naive", {"conv2": "direct", "fc1": "naive", "pool": "auto"}),
        (
            "--conv conv1=direct,conv2=unrolled",
            {"conv1": "direct", "conv2": "unrolled", "gemm": "auto", "pool": "auto"},
        ),
        ("--latency", AUTO | {"gemm": "split-k"}),
        ("--latency --conv direct", AUTO | {"gemm": "split-k", "conv": "direct"}),
        ("--conv wgmma", AUTO | {"conv_pair": "wgmma"}),
        ("--fc wgmma", AUTO | {"gemm_pair": "wgmma"}),
        ("--conv mma --fc mma", AUTO | {"conv_pair": "mma", "gemm_pair": "mma"}),
        ("--conv tensor-core --fc tensor-core", AUTO | {"conv": "tensor-core", "gemm": "tensor-core"}),
    ],
)
def test_kernel_options_become_choices(command: str, names: dict[str, str]) -> None:
    assert resolved(command)[1].kernels == named_choices(kernels=names).kernels


@pytest.mark.parametrize("value", ["", "=direct", "conv1=", "direct,unrolled", "conv1=direct,", ","])
@pytest.mark.parametrize("option", ["conv", "fc", "pool"])
def test_malformed_kernel_options_are_refused(option: str, value: str) -> None:
    fault = "name one kernel for all layers, or LAYER=KERNEL,LAYER=KERNEL"
    assert user_error(lambda: resolved(f"--{option}={value}")) == f"--{option} {value}: {fault}"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precision_and_fusion_become_choices(precision: str) -> None:
    _, found = resolved(f"--precision {precision} --no-fuse --conv direct")
    assert found == named_choices(precision, False, AUTO | {"conv": "direct"})
    _, default = resolved()
    assert default.fuse and default.precision == "auto"


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    """Write a network file with lenet5's name and shapes, but tanh instead of ReLU; return its path."""
    tanh = tuple(Tanh(layer.name) if layer.kind == "relu" else layer for layer in LENET5.layers)
    path = tmp_path / "own.toml"
    path.write_text(network_toml(replace(LENET5, layers=tanh)))
    return path


def test_a_network_file_gets_no_weights_of_another_network(own_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = requested("run", f"--network {own_file}").network
    wrong = f"no weights of network {own_file} are shipped: make some with .* train --network {own_file}, and name"
    with pytest.raises(UserError, match=wrong):
        load_graph(request)
    graph, weights, _ = load_graph(request, shapes_only=True)
    assert graph.network.digest != LENET5.digest and weights.path == Path("random weights")
    assert capsys.readouterr().err == "note: no weights of network lenet5 are shipped: random ones, seed 0\n"
    own_file.write_text(network_toml(LENET5))
    graph, weights, _ = load_graph(request)
    assert graph.network == LENET5 and weights.path == shipped.find_shipped_weights("lenet5")


def test_a_weights_file_defines_its_network(own_file: Path, tmp_path: Path) -> None:
    """--network may name another network for the arrays; the promise does not hold for that."""
    own = replace(find_network(str(own_file)), name="own")
    arrays = load_weights().arrays
    save_weights(tmp_path / "own.h5", arrays, network=own, expected_correct={100: 90})
    graph, weights, _ = load_graph(requested("run", f"--weights {tmp_path / 'own.h5'}").network)
    assert graph.network == own and weights.promised_correct_count(graph.network, 100) == 90
    graph, weights, _ = load_graph(requested("run", f"--weights {tmp_path / 'own.h5'} --network lenet5").network)
    assert graph.network == LENET5 and weights.promised_correct_count(graph.network, 100) is None


@pytest.mark.parametrize("command", ["run", "graph", "precompile", "profile"])
def test_commands_share_the_network_options(command: str) -> None:
    graph, weights, chosen = load_graph(requested(command, "--conv conv1=direct --precision fp16").network)
    assert graph.network.name == weights.network == "lenet5"
    planned = plan(graph, "sm_90a", chosen)
    assert planned.nodes[0].variant.name == "direct" and planned.arithmetic == "float16"


def test_auto_for_one_layer_overrides_the_kernel_of_all() -> None:
    graph, chosen = resolved("--conv conv=direct,conv1=auto --no-fuse")
    planned = plan(graph, "sm_90a", chosen)
    first, second = (node.variant.name for node in planned.nodes if node.head.operation == "conv")
    assert first != "direct" and second == "direct"


@pytest.mark.parametrize("command", ["", "--precision fp16", "--no-fuse", "--conv direct --fc wgmma", "--latency"])
def test_kernel_names_are_looked_up_only_with_the_options(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the plan looks up no kernel names."""
    find = Mock(wraps=registry.find_variant)
    monkeypatch.setattr(registry, "find_variant", find)
    graph, chosen = resolved(command)
    assert 0 < find.call_count <= 10
    find.reset_mock()
    plan(graph, "sm_90a", replace(chosen, precision="fp16" if chosen.named_pair_kernels else chosen.precision))
    find.assert_not_called()


# Kernels that ``auto`` chooses for every network, precision and architecture, with and without the H100's tuning table.
# Update the file on purpose when a kernel becomes automatic or other times are shipped.
CHOSEN = json.loads(Path(__file__).with_name("chosen_kernels.json").read_text(encoding="utf-8"))
STORED = kernel_selection.stored_parameters


def _cached_stored_parameters() -> Any:
    """Return ``stored_parameters`` with a cache for one graph; it skips arrays that are never scaled."""
    found: dict[Any, tuple[Any, ...]] = {}

    def look_up(graph: Graph, at: int, heads: Any, problem: Any, input_dtype: str) -> tuple[Any, ...]:
        if not (isinstance(problem, PairProblem) or problem.dtype in ("float16x2", "float32")):
            return (None,) * sum(bool(head.layer.parameter_shapes(head.in_shape)) for head in heads)
        key = at, *heads, problem, input_dtype
        if key not in found:
            found[key] = STORED(graph, at, heads, problem, input_dtype)
        return found[key]

    return look_up


def _describe_plan(graph: Graph, arch: str, choices: Choices) -> str:
    try:
        nodes = plan(graph, arch, choices).nodes
    except UserError:
        return "error"
    return " ".join(
        f"{node.name}:{node.variant.name}" + "".join(f",{name}={value}" for name, value in node.settings.items())
        for node in nodes
    )


@pytest.mark.parametrize("network", sorted({name.split()[0] for name in CHOSEN}))
def test_auto_chooses_the_recorded_kernels(network: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_selection, "stored_parameters", _cached_stored_parameters())
    graph = network_graph(network)
    tables = {arch: tuning.load(card) for arch, card in REFERENCE_CARDS.items()}
    places = [(arch, arch, Tuning()) for arch in ARCHITECTURES]
    places += [(f"{arch}+tuned", arch, table) for arch, table in tables.items()]
    for precision in GENERAL:  # ``auto`` resolves to one of these
        for fuse, how in ((True, "fused"), (False, "separate")):
            if not fuse and network in ("fa19", "k7"):  # slow, and their fused plans already run single layers
                continue
            found: dict[str, set[str]] = {}
            for place, arch, table in places:
                found.setdefault(_describe_plan(graph, arch, Choices(precision, fuse, tuning=table)), set()).add(place)
            expected = {kernels: set(text.split()) for kernels, text in CHOSEN[f"{network} {precision} {how}"].items()}
            assert found == expected, (precision, how)
