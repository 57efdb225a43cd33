"""Classify the batch of the main job on a GPU, then time its layers, kernels and copies."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from app.base.clock import time_by_host_clock
from app.base.errors import UserError
from app.cuda import device
from app.engine.gpu import GpuEngine
from app.engine.interface import Outputs
from app.engine.request import DEFAULT_WARMUP, STREAMS, RunRequest, chunk_size
from app.main_job import timing
from app.main_job.result import ComparedRun, Cycle, Outcome, Timing, compare_passes, repeat_images
from app.main_job.statistics import describe_bottleneck
from app.network.graph import Graph
from app.planning import tuning
from app.planning.matching import Choices
from app.planning.plan import notices, plan
from data_tools.dataset import Dataset

REPEAT, REPEAT_FEW = 100, 1000  # timed runs; the second for a batch of at most FEW images, which takes little time
FEW = 100
LAYER_REPEAT = 20


def run_on_gpu(
    request: RunRequest, graph: Graph, chosen: Choices, data: Dataset, batch: int, lap: Callable[[str], None]
) -> Outcome:
    """Classify ``batch`` images and return labels and measured times. If ``data`` has fewer images, repeat them.

    lap: stores the time since its last call under a name, here ``kernels`` when they are loaded. Raises UserError if no
    kernels can compute the network, and if ``--compare`` names the precision of the run itself.
    """
    images = data.images
    card = device.describe_gpu()
    if request.power:
        from app.main_job import power  # imported only here: few runs measure power

        power.check_nvml_available()
    chosen = replace(chosen, tuning=tuning.load(card["name"]))
    planned = partial(plan, graph, card["architecture"], input_dtype=images.dtype.name)
    execution = planned(chosen)
    other = None
    if request.compare is not None:
        if batch > len(images):
            raise UserError(f"--compare {request.compare} times one pass over the data: leave --cycle out")
        other = planned(replace(chosen, precision=request.compare))
        if other.arithmetic == execution.arithmetic:
            raise UserError(
                f"--compare {request.compare}: it would multiply as the run itself does, name another precision"
            )
    one_pass = images[:batch]
    repeat = request.repeat or (REPEAT_FEW if batch <= FEW else REPEAT)
    pipeline = request.pipeline
    chunk = chunk_size(pipeline.chunk, len(one_pass), streamed=batch > len(images))
    opened = partial(GpuEngine, chunk=chunk, streams=pipeline.streams, always_in_chunks=pipeline.chunk is not None)
    with opened(execution) as engine:
        lap("kernels")
        outputs = engine.allocate_outputs(len(one_pass))
        cycle = None
        if batch > len(images):
            end_to_end, cycle = _time_repeated_passes(engine, data, batch, outputs, request.repeat or 1)
        else:
            end_to_end = timing.time_end_to_end(engine, one_pass, outputs, repeat, request.warmup)
        labels = outputs.labels.copy()
        direct = engine.direct if engine.replays_graph_for(one_pass, outputs) else None
        use = None if cycle else timing.median_pipeline_usage(engine, one_pass, outputs)
        resident = timing.time_on_card(engine, one_pass, LAYER_REPEAT, request.warmup)
        notes = notices(execution, chosen)
        drawn = (
            power.measure_current_gpu(partial(engine.run, one_pass, outputs), len(one_pass)) if request.power else None
        )
        if request.power and drawn is None:
            notes.append("--power: the card tells neither energy nor power")
        if direct and pipeline.streams != STREAMS:
            notes.append(f"--streams: without effect where images are {direct.how}; add --chunk")
        if cycle is not None and request.warmup != DEFAULT_WARMUP:
            notes.append("--warmup: without effect on passes over the data, of which one goes before")
        if engine.shrunk:
            notes.append(f"chunks of {chunk:,} images do not fit in device memory: {engine.chunk:,} were used")
        if resident.images < len(one_pass):
            notes.append(f"layers were timed on {resident.images:,} images, as many as fit on the card at once")
        found = Outcome(
            device=card,
            settings={
                "streams": pipeline.streams,
                "chunk": engine.chunk,
                "images": direct.how if direct else "copied in chunks",
                "fused": request.network.fuse,
                "runs": len(end_to_end.samples),
                "warmup": request.warmup if cycle is None else 1,
                "layer_runs": LAYER_REPEAT,
            },
            labels=labels,
            cycle=cycle,
            end_to_end=end_to_end,
            layers=resident.layers,
            op_times=resident.op_times,
            on_card=resident.whole,
            on_card_images=resident.images,
            usage=use,
            limit=describe_bottleneck(use)
            if use and not direct
            else _describe_bottleneck(end_to_end.median / batch, resident),
            device_bytes=engine.device_bytes,
            peak_device_bytes=engine.device_bytes + resident.device_bytes,
            notes=tuple(notes),
            arithmetic=execution.arithmetic,
            power=drawn,
            raw_copy=resident.raw_copy if resident.images == len(one_pass) and cycle is None else None,
        )
    if request.compare is None or other is None:
        return found
    with opened(other) as engine:  # the engine above has freed its memory
        outputs = engine.allocate_outputs(batch)
        end_to_end = timing.time_end_to_end(engine, one_pass, outputs, repeat, request.warmup)
        compared = ComparedRun(request.compare, other.arithmetic, end_to_end, outputs.labels.copy())
        return replace(found, compared=compared, peak_device_bytes=max(found.peak_device_bytes, engine.device_bytes))


def _describe_bottleneck(per_image: float, resident: timing.CardTimes) -> str:
    """Return a sentence about what limits a run of several passes, or one whose first kernel reads images by bus.

    per_image: end-to-end time of an image in ms. resident: times with the images on the card.
    """
    copy, compute = (taken.median / resident.images for taken in (resident.raw_copy, resident.whole))
    what, remedy = ("the bus", "faster kernels do not help") if copy > compute else ("compute", "faster kernels help")
    return (
        f"limited by {what}: the images' bytes alone take {copy / per_image:.0%} of the run, the kernels alone "
        f"{compute / per_image:.0%}, and both go on together; {remedy}"
    )


def _time_repeated_passes(
    engine: GpuEngine, data: Dataset, batch: int, outputs: Outputs, repeat: int
) -> tuple[Timing, Cycle]:
    """Time ``repeat`` runs over ``batch`` images, more than ``data`` has. outputs: gets the first pass's labels."""
    from tqdm import tqdm  # imported only here: other runs do not need it

    images = data.images
    pair = (engine.allocate_outputs(len(images)), engine.allocate_outputs(len(images)))
    engine.run(images, outputs)  # warm-up
    outputs.labels.fill(255)
    cycles: list[Cycle] = []
    with tqdm(total=repeat * batch, unit=" images", unit_scale=True, disable=None) as progress:

        def run_next_pass() -> None:
            passes = engine.stream(repeat_images(images, batch), pair, progress.update)
            cycles.append(compare_passes(passes, data.labels, outputs.labels))

        end_to_end = Timing(time_by_host_clock(run_next_pass, repeat))
    return end_to_end, replace(cycles[-1], unsteady=sum(cycle.unsteady for cycle in cycles))
