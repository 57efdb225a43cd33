"""Run ``main.py precompile``: compile all kernels of the main job into the cache. Needs no GPU."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from app.base.clock import Timer
from app.base.errors import UserError, print_to_stderr
from app.base.precision import PRECISIONS
from app.commands.precompile import PrecompileRequest
from app.cuda.compiler import check_cache_permissions, compile_kernel, import_nvrtc, is_cached
from app.cuda.compiler_process import compile_on_all_cores
from app.kernels.problems import ConvProblem, without_epilogue
from app.planning import tuning
from app.planning.choices import load_graph, resolve_target
from app.planning.plan import ExecutionPlan, plan
from app.records.operate import Precompile
from app.terminal.output import publish_report
from app.terminal.text import paragraph

Build = tuple[Path, tuple[tuple[str, str | int], ...]]  # a .cu file and its compile-time constants


def precompile(request: PrecompileRequest) -> int:
    """Compile into the kernel cache; print how many kernels it contained already. Return 0. Raises UserError."""
    timer = Timer()
    if request.all and request.network.precision != "auto":
        raise UserError(f"--all compiles every precision: leave out --all or --precision {request.network.precision}")
    check_cache_permissions()
    graph, _, chosen = load_graph(request.network, shapes_only=True)
    arch, card = resolve_target(request.arch)
    wanted = replace(chosen, tuning=tuning.load(card))
    plans: dict[str, ExecutionPlan] = {}
    for precision in PRECISIONS if request.all else (wanted.precision,):
        try:
            plans[precision] = plan(graph, arch, replace(wanted, precision=precision))
        except UserError as reason:
            if precision == wanted.precision and not request.all:
                raise
            print_to_stderr(f"note: {precision} is left out: {reason}")
    if not plans:
        raise UserError(f"no precision can run {graph.network.name} on {arch} with these options: name fewer kernels")
    builds = list(dict.fromkeys(build for execution in plans.values() for build in needed_builds(execution)))
    compiled = _compile_all(builds, arch)
    document: Precompile = {
        "schema": "lenet5-inference/precompile/1",
        "network": graph.network.name,
        "architecture": arch,
        "precisions": [*plans],
        "kernels": len(builds),
        "compiled": compiled,
        "seconds": timer.seconds,
    }
    publish_report(document, as_text, request.output)
    return 0


def as_text(document: Precompile, width: int) -> str:
    """Return the document as text."""
    count, compiled = document["kernels"], document["compiled"]
    what = f"{count} kernels of {document['network']} in {', '.join(document['precisions'])}"
    done = f"{count - compiled} were in the cache, {compiled} compiled; {document['seconds']:.1f} s"
    return "\n".join(paragraph(f"{what} for {document['architecture']}: {done}", width))


def needed_builds(execution: ExecutionPlan) -> Iterator[Build]:
    """Yield what the main job must compile: each node's kernels, and each convolution's kernel without fused layers."""
    for node in execution.nodes:
        configs = [(variant, variant.launch_config(node.problem, settings)) for variant, settings in node.kernels]
        if isinstance(node.problem, ConvProblem):
            configs.append(
                (node.variant, node.variant.launch_config(without_epilogue(node.problem), node.settings_alone))
            )
        for variant, config in configs:
            yield variant.path, tuple(sorted(config.defines.items()))


def _compile_all(builds: list[Build], arch: str) -> int:
    """Compile those of ``builds`` that are not cached, one thread per core; return their number."""
    import_nvrtc()  # so that a missing library is reported once, not by every thread
    missing = sum(not is_cached(path, dict(defines), arch) for path, defines in builds)
    compile_on_all_cores(lambda build: compile_kernel(build[0], dict(build[1]), arch), builds, arch)
    return missing
