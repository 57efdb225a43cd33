"""From ``--conv``, ``--fc``, ``--pool``, ``--latency``, ``--precision`` and ``--no-fuse`` to the plan's choices."""

from dataclasses import replace

import pytest

from app.errors import UserError
from app.kernels import registry
from app.kernels.variant import Variant
from app.planning.choices import load_graph
from app.planning.plan import plan
from app.precision import PRECISIONS
from tests.support.requests import named_choices, requested, resolved

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
def test_kernel_names(command: str, names: dict[str, str]) -> None:
    assert resolved(command)[1].kernels == named_choices(kernels=names).kernels


@pytest.mark.parametrize("value", ["", "=direct", "conv1=", "direct,unrolled", "conv1=direct,", ","])
@pytest.mark.parametrize("option", ["conv", "fc", "pool"])
def test_malformed_kernel_names(option: str, value: str) -> None:
    with pytest.raises(UserError) as caught:
        resolved(f"--{option}={value}")
    fault = "name one kernel for all layers, or LAYER=KERNEL,LAYER=KERNEL"
    assert str(caught.value) == f"--{option} {value}: {fault}"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precision_and_fusion(precision: str) -> None:
    _, found = resolved(f"--precision {precision} --no-fuse --conv direct")
    assert found == named_choices(precision, False, AUTO | {"conv": "direct"})
    _, default = resolved()
    assert default.fuse and default.precision == "auto"


@pytest.mark.parametrize("command", ["run", "graph", "precompile", "profile"])
def test_all_commands_that_run_a_network_take_the_same_options(command: str) -> None:
    graph, weights, chosen = load_graph(requested(command, "--conv conv1=direct --precision fp16").network)
    assert graph.network.name == weights.network == "lenet5"
    planned = plan(graph, "sm_90a", chosen)
    assert planned.nodes[0].variant.name == "direct" and planned.arithmetic == "float16"


def test_a_layer_left_to_auto_beside_a_kernel_for_the_others() -> None:
    graph, chosen = resolved("--conv conv=direct,conv1=auto --no-fuse")
    planned = plan(graph, "sm_90a", chosen)
    first, second = (node.variant.name for node in planned.nodes if node.head.operation == "conv")
    assert first != "direct" and second == "direct"


@pytest.mark.parametrize("command", ["", "--precision fp16", "--no-fuse", "--conv direct --fc wgmma", "--latency"])
def test_names_are_looked_up_where_options_are_read(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more while a plan is made, whose kernels they name."""
    asked: list[str] = []
    find = registry.find

    def counted(operation: str, requested: str, *others: str) -> Variant | None:
        asked.append(requested)
        return find(operation, requested, *others)

    monkeypatch.setattr(registry, "find", counted)
    graph, chosen = resolved(command)
    assert 0 < len(asked) <= 10
    asked.clear()
    plan(graph, "sm_90a", replace(chosen, precision="fp16" if chosen.named_pairs else chosen.precision))
    assert not asked
