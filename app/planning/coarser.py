"""What the report holds the default beside: float16, where fused kernels have all of the network."""

from __future__ import annotations

from dataclasses import replace

from app.errors import UserError
from app.network.graph import Graph
from app.planning.matching import Choices
from app.planning.plan import ExecutionPlan, plan


def coarser_plan(graph: Graph, arch: str, chosen: Choices, *, input_dtype: str = "uint8") -> ExecutionPlan | None:
    """The plan in fp16; None where the precision was named, where kernels named cannot, or layers remain unfused."""
    if chosen.precision != "auto":
        return None
    try:
        execution = plan(graph, arch, replace(chosen, precision="fp16"), input_dtype=input_dtype)
    except UserError:
        return None
    return None if execution.arithmetic != "float16" or execution.unpaired else execution
