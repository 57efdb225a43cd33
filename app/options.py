"""The commands beside the main job, and the options that they share with it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app import checks
from app.console import Parser, Switch
from app.training.limits import NUMBERS, WHOLE, WORDS

MAX_BATCH = 10**12
DEFAULT_STREAMS = 4
DEFAULT_WARMUP = 5
PRECISIONS = ("fp32", "fp32x", "tf32", "fp16")  # that may be asked for


def whole_number(least: int, most: int = MAX_BATCH) -> Callable[[str], int]:
    """An argparse type: a whole number from ``least`` to ``most``."""
    return _typed(int, "a whole number", checks.whole(least, most))


def number(least: float, most: float, above: bool = False) -> Callable[[str], float]:
    """An argparse type: a number from ``least`` (or only ``above`` it) up to ``most``."""
    return _typed(float, "a number", checks.number(least, most, above))


def _typed(kind: Callable[[str], Any], what: str, check: checks.Check) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{text}' is not {what}") from None
        try:
            return check(value)
        except checks.BadValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _setting(name: str) -> Callable[[str], Any]:
    """The argparse type of a training's setting."""
    return whole_number(*WHOLE[name]) if name in WHOLE else number(*NUMBERS[name])


def network_options(parser: argparse.ArgumentParser) -> None:
    """Which network, weights, kernels and precision."""
    group = parser.add_argument_group("network")
    group.add_argument("--network", metavar="NAME", help="the network (default: that of --weights, else lenet5)")
    group.add_argument("--weights", type=Path, metavar="FILE", help="HDF5 weights (default: those shipped in weights/)")
    group.add_argument(
        "--conv",
        default="auto",
        metavar="NAME",
        help="convolution kernel, or one a layer: conv1=NAME,conv2=NAME (default: auto; see 'kernels')",
    )
    group.add_argument("--fc", default="auto", metavar="NAME", help="fully connected kernel, likewise (default: auto)")
    group.add_argument("--pool", default="auto", metavar="NAME", help="pooling kernel, likewise (default: auto)")
    group.add_argument(
        "--latency",
        action="store_true",
        help="split the sums of fully connected layers over more blocks: quicker for few images, other rounding",
    )
    group.add_argument(
        "--precision",
        default="auto",
        choices=("auto", *PRECISIONS),
        help="how numbers are multiplied and stored; sums are kept in float32 (fp32x: as exact as fp32, on tensor "
        "cores; default: fp32x where the card and the network allow it, else fp32)",
    )
    group.add_argument("--no-fuse", action="store_true", help="run every layer as a kernel of its own")


def command(name: str, description: str, epilog: str = "") -> Parser:
    """The parser of one command, still without options."""
    return Parser(
        prog=f"main.py {name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


PRECOMPILE_EPILOG = """\
examples:
  python main.py precompile                     for this machine's card
  python main.py precompile --arch sm_90a       for another: needs no GPU, for an image that will run on one
  python main.py precompile --all               every precision
"""


def precompile_parser() -> argparse.ArgumentParser:
    """The parser of ``precompile``."""
    parser = command(
        "precompile",
        "Compile the main job's kernels into the cache, so that its first run compiles none.",
        PRECOMPILE_EPILOG,
    )
    network_options(parser)
    parser.add_argument("--arch", metavar="NAME", help="architecture to compile for (default: this card's)")
    parser.add_argument("--all", action="store_true", help="every precision that the architecture has, not just one")
    return parser


BENCH_EPILOG = """\
examples:
  python main.py bench                                   lenet5: every variant, 10,000 images
  python main.py bench --network k7 --batch 1000
  python main.py bench --batches 100,1000,5000,10000 --plot plots --json bench.json
  python main.py bench --shape 12,33,33,24,5,1           one convolution: C,H,W,M,K,S
  python main.py bench --peers --json peers.json         the application beside PyTorch and JAX
  python main.py bench --peers --batch 1 --only ours,torch-reduce-overhead
  python main.py bench --peers --network k7 --only ours,torch-eager --precision fp32
  python main.py bench --scenario single-stream          LoadGen's scenarios, for the application
  python main.py bench --training --json train.json      how long an epoch takes, and which kernels take it

Every variant is checked against the float64 reference before it is timed. Times are medians of CUDA events with
the images on the card; runs go on until the median is steady (see --noise). The L2 cache is flushed between
runs, unless --l2 warm says otherwise.
"""


def bench_parser() -> argparse.ArgumentParser:
    """The parser of ``bench``."""
    parser = command("bench", "Check and time every kernel variant, layer by layer.", BENCH_EPILOG)
    what = parser.add_argument_group("what")
    what.add_argument("--network", default="lenet5", metavar="NAME", help="whose layers to time (default: lenet5)")
    what.add_argument("--shape", metavar="C,H,W,M,K,S", help="one convolution of these sizes instead of a network")
    what.add_argument("--batch", type=whole_number(1), default=10_000, metavar="N", help="images (default: 10000)")
    what.add_argument("--batches", metavar="N,N,…", help="several batch sizes; the largest makes the main table")
    what.add_argument("--only", metavar="NAME,…", help="only these variants; with --peers: only these engines")
    whole = parser.add_argument_group("the whole application instead of kernels (Fashion-MNIST test images)")
    kind = whole.add_mutually_exclusive_group()
    kind.add_argument("--peers", action="store_true", help="beside PyTorch and JAX, in turn, on the same card")
    kind.add_argument("--scenario", choices=("offline", "single-stream"), help="as LoadGen defines it")
    kind.add_argument("--training", action="store_true", help="epochs of lenet5 and mlp, beside NumPy on this CPU")
    whole.add_argument("--precision", choices=PRECISIONS, help="only this one (default: all)")
    whole.add_argument("--rounds", type=whole_number(1, 1000), metavar="N", help="turns of each engine (default: 7)")
    how = parser.add_argument_group("how")
    how.add_argument("--l2", default="cold", choices=("cold", "warm"), help="state of the L2 cache (default: cold)")
    how.add_argument(
        "--noise", type=float, default=0.01, metavar="X", help="stop when the median is known to this share (0.01)"
    )
    out = parser.add_argument_group("output")
    out.add_argument("--json", metavar="FILE", help="also write all figures as JSON; '-': to standard output alone")
    out.add_argument("--plot", type=Path, metavar="DIR", help="draw ladder, roofline and batch-size plots (matplotlib)")
    out.add_argument(
        "--save-tuning", action="store_true", help="let 'auto' go by these results from now on (not with --only)"
    )
    return parser


SWEEP_EPILOG = """\
examples:
  python main.py sweep --conv implicit-gemm                    both convolutions of lenet5
  python main.py sweep --conv register-patch --layer conv2 --network k7 --plot plots
  python main.py sweep --fc register-tiled --layer fc1
  python main.py sweep --conv shared-tile --set TILE=8,16,24   only these values
  python main.py sweep --pipeline                              streams x chunk size, end to end

The best point of each layer is stored for this card and used by 'auto'. An interrupted sweep keeps what it has found.
"""


def sweep_parser() -> argparse.ArgumentParser:
    """The parser of ``sweep``."""
    parser = command("sweep", "Time a variant over the grid of its declared parameters.", SWEEP_EPILOG)
    parser.add_argument("--conv", metavar="NAME", help="the convolution variant to sweep")
    parser.add_argument("--fc", metavar="NAME", help="the fully connected variant to sweep")
    parser.add_argument("--pool", metavar="NAME", help="the pooling variant to sweep")
    parser.add_argument("--pipeline", action="store_true", help="sweep streams and chunk sizes of the main job instead")
    parser.add_argument("--network", default="lenet5", metavar="NAME", help="whose layers (default: lenet5)")
    parser.add_argument("--layer", metavar="NAME", help="only this layer (default: all that the variant serves)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=V,…", help="values of one parameter instead of all"
    )
    parser.add_argument("--batch", type=whole_number(1), default=10_000, metavar="N", help="images (default: 10000)")
    parser.add_argument("--fused", action="store_true", help="with the activation and pooling that follow the layer")
    parser.add_argument("--precision", choices=PRECISIONS, help="default: fp32, or the first that the kernel has")
    parser.add_argument("--json", metavar="FILE", help="also write all points as JSON; '-': to standard output alone")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw heat map and 3-D plot (matplotlib)")
    return parser


def profile_parser() -> argparse.ArgumentParser:
    """The parser of ``profile``."""
    parser = command("profile", "Where the time of the main job goes: kernels, copies, API calls.")
    parser.add_argument("--batch", type=whole_number(1), default=10_000, metavar="N", help="images (default: 10000)")
    network_options(parser)
    pipeline_options(parser)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a timeline for Perfetto or chrome://tracing")
    parser.add_argument("--counters", action="store_true", help="hardware counters per kernel, by Nsight Compute (ncu)")
    parser.add_argument("--json", metavar="FILE", help="also write all figures as JSON; '-': to standard output alone")
    return parser


TRAIN_EPILOG = """\
examples:
  python main.py train --network lenet5                        as the shipped weights were made; CPU: over an hour
  python main.py train --network mlp --epochs 10 --plot plots  a quick one, with its learning curve
  python main.py train --network k7 --images 2000 --epochs 2   a try
  python main.py train --resume lenet5_trained.h5.checkpoint   go on where an interrupted training stopped
  python main.py train --network lenet5 --workers 2            two processes share each batch
  python main.py --weights mlp_trained.h5                      classify with what came out

The epoch that is best on the images held out is kept; the test images are used once, at the end, to record what the
weights promise. Same options, same card or CPU, as many workers: same bits, resumed or not; with other --workers the
same within rounding. What is not said is the network's own recipe. --resume remembers the options of images, --plot
and --json.

exit codes: 0 the weights are written; 2 a usage, data or device error, an interruption, or a training that diverges
(its loss is no number, or over ten times that of guessing); 3 a bug.
"""


def train_parser() -> argparse.ArgumentParser:
    """The parser of ``train``. What is None was not said."""
    parser = command("train", "Train a network on Fashion-MNIST, on a GPU, or slowly on the CPU.", TRAIN_EPILOG)
    what = parser.add_argument_group("what")
    what.add_argument("--network", metavar="NAME", help="the network to train, from scratch; mlp_500: mlp, but wider")
    what.add_argument("--resume", type=Path, metavar="FILE", help="the checkpoint of a training to go on with")
    what.add_argument("--output", type=Path, metavar="FILE", help="weights to write (default: NAME_trained.h5)")
    what.add_argument("--overwrite", action="store_true", help="replace the weights in --output, if there are any")
    what.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"), help="auto: a GPU if there is one")
    data = parser.add_argument_group("images")
    data.add_argument("--images", type=_setting("images"), metavar="N", help="only the first N (default: all 60,000)")
    data.add_argument(
        "--validation",
        type=_setting("validation"),
        metavar="N",
        help="held out to choose the best epoch (default: a twelfth)",
    )
    data.add_argument("--data-dir", type=Path, metavar="DIR", help="the folder that holds Fashion-MNIST")
    data.add_argument("--data", type=Path, metavar="FILE", help="own images: IDX (.gz or not), or HDF5 with x and y")
    data.add_argument("--labels", type=Path, metavar="FILE", help="IDX labels for --data")
    parser.add_argument(
        "--workers",
        type=_setting("workers"),
        metavar="N",
        help="processes that share each batch: a GPU each, or the CPU's cores (default: 1, or as many as before)",
    )
    how = parser.add_argument_group("how (default: the network's recipe)")
    how.add_argument("--epochs", type=_setting("epochs"), metavar="N", help="passes over the images")
    how.add_argument("--batch", type=_setting("batch"), metavar="N", help="images between two updates")
    how.add_argument("--seed", type=_setting("seed"), metavar="N", help="of everything random (default: 1)")
    how.add_argument("--optimiser", choices=WORDS["optimiser"], help="sgd has momentum")
    how.add_argument("--rate", type=_setting("rate"), metavar="X", help="peak of the one-cycle schedule")
    how.add_argument("--weight-decay", type=_setting("weight_decay"), metavar="X", help="decoupled, times the rate")
    how.add_argument("--l2", type=_setting("l2"), metavar="X", help="X/2 times the weights' squares, in the loss")
    how.add_argument("--smoothing", type=_setting("smoothing"), metavar="X", help="of the labels")
    how.add_argument("--dropout", metavar="LAYER=X,…", help="share of a layer's inputs left out (or: none)")
    how.add_argument("--shift", type=_setting("shift"), metavar="N", help="most pixels that images are shifted by")
    how.add_argument("--flip", action=Switch, default=None, help="flip half of the images")
    out = parser.add_argument_group("output")
    out.add_argument(
        "--json", metavar="FILE", help="also write settings and epochs as JSON; '-': to standard output alone"
    )
    out.add_argument("--storage", choices=WORDS["storage"], help="type of the weights in their file")
    out.add_argument("--plot", type=Path, metavar="DIR", help="draw the learning curve (matplotlib)")
    return parser


def pipeline_options(parser: argparse.ArgumentParser) -> None:
    """``--streams`` and ``--chunk``."""
    pipeline = parser.add_argument_group("pipeline (GPU)")
    pipeline.add_argument(
        "--streams",
        type=whole_number(1, 64),
        default=DEFAULT_STREAMS,
        metavar="N",
        help=f"chunks in flight at once (default: {DEFAULT_STREAMS})",
    )
    pipeline.add_argument(
        "--chunk",
        type=whole_number(1),
        metavar="N",
        help="images per copy (default: a fifth of the batch, up to 4096; with --cycle as few as may be; or no "
        "copies: see docs/fast-path.md)",
    )
