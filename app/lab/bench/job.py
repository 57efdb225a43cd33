"""Run ``main.py bench``: check every kernel against float64 results, time it, and compare the times by layer."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import cast

from tqdm import tqdm

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.base.interrupts import exit_on_interrupt
from app.base.processor import core_count
from app.commands.bench import BenchRequest
from app.cuda import device
from app.drawing import svg
from app.kernels import registry
from app.kernels.problems import Problem
from app.lab.bench import cudnn, plots
from app.lab.bench.cases import (
    Item,
    item_variants,
    network_items,
    parse_batch_sizes,
    parse_shape_items,
    parse_variant_names,
)
from app.lab.bench.results import DEBUG, Table, convolution_totals, table_record
from app.lab.bench.table import as_text
from app.lab.document import utc_date
from app.lab.peers.peers import compare
from app.lab.user_kernel.child import CardProcess
from app.lab.user_kernel.record import describe_source, write_record
from app.lab.user_kernel.row import UserVariant, open_user_kernel
from app.lab.user_kernel.timing import FileTimer
from app.main_job.statistics import describe_stopping_rule
from app.network.graph import Graph, network_graph
from app.planning import tuning
from app.records.bench import Bench
from app.records.parts import Card, Processor
from app.terminal.output import publish_report


class Job(Frozen):
    """What to time. graph: None with ``--shape``. batches: batch sizes, ascending; the tables show the last one.

    subject: text for the heading. only: names of variants, None for all. mine: row of a user's kernel.
    """

    subject: str
    graph: Graph | None
    items: list[Item]
    batches: list[int]
    only: set[str] | None
    mine: UserVariant | None = None

    @property
    def single_convolutions(self) -> list[Item]:
        """Return the items that consist of one convolution without fused layers."""
        return [item for item in self.items if item.is_single_convolution]

    @property
    def whole_network(self) -> Graph | None:
        """Return the network to time end to end; None for a shape or a user's file, which are timed alone."""
        return None if self.mine is not None else self.graph


def bench(request: BenchRequest) -> int:
    """Time kernels, or frameworks with ``--peers``. Return 1 if a result was wrong, otherwise 0. Raises UserError."""
    return compare(request) if request.peers else time_kernels(request)


def time_kernels(request: BenchRequest) -> int:
    """Check and time the kernels, print and write the tables. Raises UserError.

    Return 1 if a result was wrong, or if a record was asked for and the user's kernel was not timed; else 0.
    """
    with ExitStack() as opened:
        with exit_on_interrupt():
            mine = None if request.file is None else opened.enter_context(open_user_kernel(request.file, request.like))
            job = job_from_request(request, mine)
            source = None if mine is None else describe_source(mine)
        if mine is not None and (no_gpu := device.why_no_gpu()) is not None:
            raise UserError(f"bench needs an NVIDIA GPU: {no_gpu}; without one, check {mine.name} --counts places it")
        device.require_gpu("bench")
        if request.plot is not None:
            svg.create_chart_folder(request.plot)
        with device.translate_gpu_errors():
            document, tables = _measure_items(request, job)

    publish_report(document, as_text, request.output)
    if request.plot is not None:
        plots.draw_charts(document, request.plot)
    output, wrong = request.output, any(row.wrong for table in tables for row in table.rows)
    if request.record is not None and source is not None:
        wrong |= not write_record(document, source, request.author, request.record, overwrite=output.overwrite)
    return int(wrong)


def job_from_request(request: BenchRequest, mine: UserVariant | None = None) -> Job:
    """Return what the request asks to time. mine: row of a user's kernel. Raises UserError for any wrong option."""
    if not 0 < request.noise < 1:
        raise UserError(f"--noise {request.noise:g}: give a number between 0 and 1, e.g. 0.01")
    batches = parse_batch_sizes(request.batch, request.batches)
    only = parse_variant_names(request.only)
    if request.save_tuning and only is not None:
        raise UserError("--save-tuning stores times that 'auto' compares with all others: leave --only out")
    if request.plot is not None:
        svg.check_chart_folder(request.plot)
    if request.shape is not None:
        items = parse_shape_items(request.shape)
        subject = f"convolution {request.shape} (C,H,W,M,K,S)"
        return Job(subject, None, items, batches, only, _check_operation_supported(mine, items, subject))
    graph = network_graph(request.network)
    items = [item for item in network_items(graph) if item_variants(item, only, mine)]
    subject = f"network {graph.network.name}"
    if mine is not None:
        items = [item for item in items if item.operation == mine.operation and len(item.layers) == 1]
    return Job(subject, graph, items, batches, only, _check_operation_supported(mine, items, subject))


def _check_operation_supported(mine: UserVariant | None, items: Sequence[Item], subject: str) -> UserVariant | None:
    """Return ``mine``, the row of a user's kernel or None. Raises UserError if no item has its operation."""
    if mine is None or any(item.operation == mine.operation for item in items):
        return mine
    raise UserError(f"{mine.name} is a {mine.operation} kernel, and {subject} has no layer for it: name another")


def _measure_items(request: BenchRequest, job: Job) -> tuple[Bench, list[Table]]:
    """Compile, check and time everything in the job; return the document and the tables of the largest batch."""
    with exit_on_interrupt():  # these imports load CuPy
        from app.lab.bench import peak
        from app.lab.bench.compiling import compile_variants
        from app.lab.bench.ladder import ItemTimer
        from app.lab.bench.whole_network import precision_variant_pairs, time_whole_program

        no_cudnn = cudnn.why_no_cudnn() if job.single_convolutions else None
    card = device.describe_gpu()
    known, arch, main = tuning.load(card["name"]), card["architecture"], job.batches[-1]
    whole = job.whole_network
    notes = [f"no cuDNN rows: {no_cudnn}"] if no_cudnn else []
    compile_variants([pair for item in job.items for pair in item_variants(item, job.only, job.mine)], arch, known)
    with tqdm(desc="bench", unit=" rows", disable=None) as progress, CardProcess() as process:
        timer = ItemTimer(arch, known, request.noise, request.l2, job.only, no_cudnn is None, progress.update)
        if job.mine is not None:
            timer = replace(timer, mine=job.mine, time_mine=FileTimer(process, job.mine, request.like, arch).time)
        progress.total = sum(timer.row_count(item) for item in job.items)
        progress.total += sum(timer.row_count(item) for item in job.single_convolutions) * (len(job.batches) - 1)
        progress.total += len(precision_variant_pairs(whole, job.only)) * len(job.batches) if whole else 0
        peaks = peak.measure_peaks(arch)
        tables = {main: [timer.time_item(item, job.graph, main) for item in job.items]}
        if request.save_tuning:
            notes.append(
                f"'auto' goes by these results from now on: {tuning.store(card['name'], tuned_results(tables[main]))}"
            )
            known = tuning.load(card["name"])  # for the whole program
        tables |= {
            size: [timer.time_item(item, job.graph, size) for item in job.single_convolutions]
            for size in job.batches[:-1]
        }
        programs = {
            size: time_whole_program(whole, arch, known, size, job.only, progress.update) if whole else []
            for size in job.batches
        }
    notes += [
        f"{table.item}: {size:,} images do not fit in device memory, {table.images:,} were used"
        for size, found in tables.items()
        for table in found
        if table.images < size
    ]
    document: Bench = {
        "schema": "lenet5-inference/bench/1",
        "date": utc_date(),
        "subject": job.subject,
        "device": cast(Card, card),
        "cpu": cast(Processor, device.describe_cpu(core_count())),
        "images": main,
        "settings": {
            "noise": request.noise,
            "l2": request.l2,
            "rule": describe_stopping_rule(request.noise, request.l2),
        },
        "peaks": peaks,
        "tables": [table_record(table, peaks) for table in tables[main]],
        "totals": convolution_totals(tables[main]),
        "batches": [
            {"images": size, "totals": convolution_totals(tables[size]), "whole_program": programs[size]}
            for size in job.batches
        ],
        "whole_program": programs[main],
        "notes": notes,
    }
    return document, tables[main]


def tuned_results(tables: Sequence[Table]) -> dict[Problem, dict[str, tuning.TunedResult]]:
    """Return the times of the registry's variants as problem → name → result, for the tuning file of ``auto``."""
    found: dict[Problem, dict[str, tuning.TunedResult]] = {}
    for served in tables:
        variants = {row.name: row for row in registry.variants(served.operation)}
        for row in served.rows:
            if row.ms is not None and row.step is not None and row.kind != DEBUG:  # the CPU and cuDNN have no step
                entry = tuning.TunedResult(dict(row.settings), row.ms, served.images)
                form = registry.served_form(variants[row.name], served.problems[row.dtype])
                found.setdefault(form, {})[row.name] = entry
    return found
