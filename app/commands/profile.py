"""Define the options of ``main.py profile``, and the arguments with which ncu, a profiler, runs it again."""

from pathlib import Path

from app.base.frozen import Frozen
from app.engine.request import ChunkOptions, gpu_option
from app.planning.request import NetworkRequest
from app.terminal.console import whole_number_type
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "lab.profile.job"
EPILOG = """\
examples:
  python main.py profile                  lenet5, 10,000 images
  python main.py profile --precision fp32 --batch 1000 --trace trace.json
                                          a timeline for ui.perfetto.dev
  python main.py profile --timeline sm.html
                                          what each warpgroup does when
  python main.py profile --counters       also hardware counters, by ncu
"""


class ProfileRequest(Frozen, kw_only=True):
    """Options of ``profile``: the run to profile, and the files to write."""

    batch: int = option("number of images (default: 10000)", 10_000, type=whole_number_type(1), metavar="N")
    device: str = gpu_option()
    network: NetworkRequest = options("network")
    pipeline: ChunkOptions = options("pipeline (GPU)")
    trace: Path | None = option("write a timeline to FILE, for Perfetto or chrome://tracing", group="output")
    timeline: Path | None = option(
        "draw one multiprocessor's warpgroups, and the bus against the kernels, to FILE (HTML; lenet5 on Hopper)",
        group="output",
    )
    counters: bool = option("also read each kernel's hardware counters with Nsight Compute (ncu)", False)
    every_step: bool = option(
        "count every step of the ladder with ncu instead, each layer by itself (for the pages of make docs)", False
    )
    output: Output = options(what="all figures")


def rerun_arguments(request: ProfileRequest) -> list[str]:
    """Return arguments for ``main.py`` that profile the same run, without timeline and hardware counters."""
    network = request.network
    flags = {"no-fuse": not network.fuse, "no-sparse": not network.sparse, "latency": network.latency}
    values = vars(network) | {"batch": request.batch, **vars(request.pipeline)}
    given = [f"--{name}={value}" for name, value in values.items() if value is not None and type(value) is not bool]
    return ["profile", *given, *(f"--{name}" for name, on in flags.items() if on)]
