"""Open the devices that classify: one by this process, several by processes of this machine, or a Dask cluster's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from app.base.errors import print_to_stderr
from app.base.frozen import Frozen
from app.base.interrupts import deferred_interrupts, exit_on_interrupt
from app.base.processor import core_numbers, divide_cores, format_cores
from app.classify.pieces import CPU_PIECE, GPU_PIECE, DeviceInfo, Piece, PieceFault, PieceResult, Runner
from app.classify.worker import LocalRunner, Worker, WorkerSettings
from app.cluster import require_dask
from app.commands.classify import ClassifyRequest
from app.cuda.cards import VARIABLE, parse_device_list


class DeviceQuery(Frozen):
    """A request to a worker to describe its device; it is sent in place of a piece (a range of images)."""


class WorkerOpener(Frozen):
    """Opens a worker in the process that calls this object; ``app.cluster`` sends it to that process by pickle."""

    settings: WorkerSettings

    @contextmanager
    def __call__(
        self, name: str | None
    ) -> Iterator[Callable[[Piece | DeviceQuery], PieceResult | PieceFault | DeviceInfo]]:
        """Yield a function that classifies pieces. name: of the worker in the report; None: named by its device."""
        with Worker(replace(self.settings, label=name)) as worker:

            def process_piece(piece: Piece | DeviceQuery) -> PieceResult | PieceFault | DeviceInfo:
                if isinstance(piece, DeviceQuery):
                    return worker.device_info
                found = worker.classify(piece)
                if name is None and isinstance(found, PieceFault):  # name the machine: only this one may lack the file
                    return PieceFault(f"{found.reason} (on {worker.device_info.host})")
                return found

            yield process_piece


OpenedRunner = tuple[Runner, DeviceInfo, Callable[[], None]]
"""A runner, the description of one of its devices, and a function that raises a deferred KeyboardInterrupt."""


@contextmanager
def open_runner(request: ClassifyRequest, settings: WorkerSettings) -> Iterator[OpenedRunner]:
    """Open the requested devices, and close them after the block. Raises UserError if they cannot be used."""
    if request.scheduler is not None:
        require_dask("--scheduler")
        with exit_on_interrupt():
            from app.cluster.runner import open_cluster_runner
        with _open_process_runner(partial(open_cluster_runner, WorkerOpener(settings), request.scheduler)) as found:
            yield found
        return
    workers: list[tuple[str, dict[str, str]]] = []
    if request.devices is not None:
        cards = parse_device_list(request.devices)
        settings = replace(settings, device="cuda")
        if len(cards) == 1:
            cards[0].make_only_visible()
        workers = [(str(card), {VARIABLE: card.visible}) for card in cards]
    elif request.workers is not None:
        settings = replace(settings, device="cpu")
        workers = [("", {}) for _ in range(request.workers)]
    if len(workers) < 2:
        with exit_on_interrupt():
            worker = Worker(settings)
        with worker:
            if worker.why_cpu is not None:
                print_to_stderr(f"note: running on the CPU: {worker.why_cpu}")
            yield LocalRunner(worker), worker.device_info, lambda: None
        return
    require_dask("--devices" if request.devices else "--workers")
    with exit_on_interrupt():
        from app.cluster.clusters import LocalWorker
        from app.cluster.runner import IN_FLIGHT, open_local_runner
    groups = divide_cores(core_numbers(), len(workers))
    local = [
        LocalWorker(name or f"cpu:{format_cores(cores)} ({number})", environment, cores)
        for number, ((name, environment), cores) in enumerate(zip(workers, groups, strict=True), 1)
    ]
    in_flight = max(IN_FLIGHT, len(groups[0])) if settings.compressed else IN_FLIGHT
    with _open_process_runner(partial(open_local_runner, WorkerOpener(settings), local, in_flight)) as found:
        yield found


@contextmanager
def _open_process_runner(runner: Callable[..., AbstractContextManager[Any]]) -> Iterator[OpenedRunner]:
    """Open a runner on several processes by ``runner``, which gets a function that estimates the seconds of a piece."""
    rate = 1.0

    def estimate_seconds(piece: Piece | DeviceQuery) -> float:
        return 1.0 if isinstance(piece, DeviceQuery) or piece.shard.is_sequential else piece.count / rate

    with deferred_interrupts() as check_interrupt, runner(estimate=estimate_seconds, check=check_interrupt) as running:
        ((_, device_info),) = running.run([DeviceQuery()])
        rate = CPU_PIECE / 0.1 if device_info.limit == "compute" else GPU_PIECE / 0.016  # images/s of fast devices
        yield running, device_info, check_interrupt
