"""Measure the phases of warpgroups: run a batch with lenet5's Hopper kernels, compiled to write time stamps."""

from dataclasses import replace
from typing import Any

import numpy as np
from cupy.cuda import runtime

from app.base.errors import UserError
from app.engine.gpu import GpuEngine
from app.kernels.launch import Kernel
from app.kernels.problems import Problem
from app.kernels.variant import LaunchConfig, Parameters, Variant
from app.lab.profile.stamps import HEAD, Shares, warpgroup_timeline
from app.main_job import timing
from app.planning.plan import ExecutionPlan

RUNS, WARMUP = 20, 5
MOST_STAMPS = 4096  # the most that a warpgroup may write
IMAGES = 2  # per warpgroup and round of a kernel without a constant IMAGES
THREADS = 128  # per warpgroup


def first_kernel_shares(execution: ExecutionPlan, images: int, multiprocessors: int) -> Shares:
    """Return how the plan's first kernel distributes images. Raises UserError if it writes no stamps, or too many."""
    node = execution.nodes[0]
    if not (node.variant.operation == "conv_pair" and node.variant.instructions == "wgmma"):
        raise UserError(
            f"--timeline: {node.variant.name} ({node.name}) leaves no stamps; lenet5's convolutions on a Hopper card "
            "do: --precision fp16, fp32x or int8, without --conv and --no-fuse"
        )
    config = node.variant.launch_config(node.problem, node.settings)
    (launch,) = config.launches
    shares = Shares.from_launch_sizes(
        images, int(config.defines.get("IMAGES", IMAGES)), multiprocessors, launch.threads // THREADS
    )
    if shares.max_stamp_count > MOST_STAMPS:
        raise UserError(f"--timeline: {images:,} images would leave too many stamps: leave --batch out")
    return shares


def measure_timeline(execution: ExecutionPlan, images: np.ndarray, shares: Shares) -> dict[str, Any]:
    """Time the batch without time stamps and with them; return the ``timeline`` part of the profile document.

    images: page-locked, (N, C, H, W) uint8. Raises RuntimeError if the stamps change the labels.
    """
    with GpuEngine(execution, chunk=len(images), streams=1) as engine:
        outputs = engine.allocate_outputs(len(images))
        plain = timing.time_end_to_end(engine, images, outputs, RUNS, WARMUP)
        labels, how = outputs.labels.copy(), engine.direct.how if engine.direct else "copied in chunks"
        resident = timing.time_on_card(engine, images, RUNS, WARMUP)
    node = execution.nodes[0]
    stamped_node = replace(node, variant=add_time_stamps(node.variant, shares))
    stamping = replace(execution, nodes=(stamped_node, *execution.nodes[1:]))
    with GpuEngine(stamping, chunk=len(images), streams=1) as engine:
        outputs = engine.allocate_outputs(len(images))
        slowed = timing.time_end_to_end(engine, images, outputs, RUNS, WARMUP)
        words = read_time_stamps(engine.loaded.kernels[0], shares)
    if not np.array_equal(labels, outputs.labels):
        raise RuntimeError(f"{node.variant.source} computes other labels with stamps")
    return {
        "kernel": node.variant.name,
        "layers": node.name,
        "images_are": how,
        "end_to_end_ms": {"plain": plain.median, "stamped": slowed.median},
        "on_card_ms": resident.whole.median,
        "raw_copy_ms": resident.raw_copy.median,
        **warpgroup_timeline(words, shares),
    }


def add_time_stamps(variant: Variant, shares: Shares) -> Variant:
    """Return the variant, compiled so that its kernel writes time stamps; ``shares`` gives their number."""
    constants: dict[str, str | int] = {"STAMPS": shares.max_stamp_count, "STAMPED": shares.blocks * shares.warpgroups}

    def configure(problem: Problem, parameters: Parameters) -> LaunchConfig:
        config = variant.configure(problem, parameters)
        return replace(config, defines=config.defines | constants)

    return replace(variant, configure=configure)


def read_time_stamps(kernel: Kernel, shares: Shares) -> np.ndarray:
    """Return the stamps of the last launch, (blocks x warpgroups, HEAD + stamps) uint64; the device must be idle."""
    words = np.empty((shares.blocks * shares.warpgroups, HEAD + shares.max_stamp_count), np.uint64)
    address = kernel.load_module().get_global_var("stamps")
    runtime.memcpy(words.ctypes.data, address, words.nbytes, runtime.memcpyDeviceToHost)
    return words
