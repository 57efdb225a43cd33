"""Run ``main.py classify``: label the images of any number of shards, in constant memory."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from app.base.clock import Timer
from app.base.errors import UserError, print_to_stderr
from app.base.interrupts import exit_on_interrupt
from app.classify.outputs import OutputFolder, Window
from app.classify.pieces import (
    DeviceInfo,
    Piece,
    PieceFault,
    PieceResult,
    Runner,
    images_per_piece,
    select_image_ranges,
    split_into_pieces,
)
from app.classify.report import Totals, as_text, build_report
from app.classify.runners import open_runner
from app.classify.shards import Shard, ShardError, find_shards, open_shard
from app.classify.worker import WorkerSettings
from app.commands.classify import ClassifyRequest
from app.engine.request import UNLABELLED
from app.files import hdf5_process
from app.main_job.images import graph_for_images
from app.network.definitions import is_listed_network
from app.network.graph import Graph, load_network
from app.records.classify import Identity
from app.terminal.output import publish_report
from data_tools.dataset import Dataset

MOST_NAMED = 3  # most unreadable shards that the final error names


@dataclass
class UnreadableShards:
    """The unreadable files (shards) of a run. shards: number of files in the run. found: path → reason."""

    shards: int
    found: dict[Path, str] = field(default_factory=dict)

    def add(self, path: Path, reason: str) -> None:
        """Record why a shard is unreadable, unless a reason is recorded; print it if the run has several shards."""
        if path in self.found:
            return
        self.found[path] = reason
        if self.shards > 1:
            tqdm.write(f"unreadable: {reason}", file=sys.stderr)

    def unreadable_shards_error(self) -> UserError:
        """Return the error that names the unreadable shards, for the end of the run."""
        if self.shards == 1:
            return UserError(*self.found.values())
        names = ", ".join(map(str, [*self.found][:MOST_NAMED]))
        more = f" and {len(self.found) - MOST_NAMED:,} more" if len(self.found) > MOST_NAMED else ""
        others = "the others have their labels" if len(self.found) < self.shards else "nothing is written"
        return UserError(f"{len(self.found):,} of {self.shards:,} shards cannot be read ({names}{more}); {others}")


@dataclass
class ClassifyRun:
    """One run of ``classify``. windows: for each shard, (first image, number of images). tally: counts so far."""

    shards: Sequence[Shard]
    windows: Sequence[Window]
    device_info: DeviceInfo
    folder: OutputFolder
    unreadable: UnreadableShards
    tally: Totals = field(default_factory=Totals)

    def classify_remaining(self, runner: Runner) -> None:
        """Classify the shards that have no results yet. Raises UserError if the work cannot go on."""
        total = sum(self.windows[number][1] for number in self.folder.remaining_shards)
        with (
            tqdm(total=total, unit=" images", unit_scale=True, disable=None) as bar,
            closing(runner.run(self._remaining_pieces())) as answers,
        ):
            for piece, answer in answers:
                if isinstance(answer, PieceFault):
                    self.unreadable.add(piece.shard.path, answer.reason)
                    self.folder.discard_unfinished(piece.number)
                elif piece.shard.path not in self.unreadable.found:
                    try:
                        self._store_result(piece, answer)
                    except ShardError as error:
                        self.unreadable.add(piece.shard.path, str(error))
                bar.update(piece.count)

    def _remaining_pieces(self) -> Iterator[Piece]:
        """Yield the pieces, ranges of images, of the shards that have no results yet and were not found unreadable."""
        size = images_per_piece(self.device_info)
        for number in self.folder.remaining_shards:
            for piece in split_into_pieces(number, self.shards[number], *self.windows[number], size):
                if piece.shard.path not in self.unreadable.found:
                    yield piece

    def _store_result(self, piece: Piece, result: PieceResult) -> None:
        """Add the result of a piece (range of images) to the totals, and write it to the result files of its shard."""
        one, other = self.device_info, result.device_info
        if one.arithmetic != other.arithmetic:
            raise UserError(
                f"{one.host} computes in {one.arithmetic}, {other.host} in {other.arithmetic}: their results may "
                "differ; name one --precision or --device, or use machines of one kind"
            )
        timer = Timer()
        self.folder.write(piece.number, piece.first, result.labels, result.logits, result.correct)
        self.tally.writing += timer.seconds
        self.tally.add(piece, result)


def classify(request: ClassifyRequest) -> int:
    """Classify the shards, write the labels and print the report. Return 0.

    Raises UserError; if some shards cannot be read, only after the others are classified.
    """
    with ExitStack() as stack:
        with exit_on_interrupt():
            network, weights = load_network(request.network, request.weights)
            paths = find_shards(request.shards)
            unreadable = UnreadableShards(len(paths))
            graph, shards = _open_shards(request, paths, network, unreadable)
            parts = select_image_ranges([shard.count for shard in shards], request.start, request.count)
            folder = OutputFolder(
                request.folder,
                shards,
                parts,
                logits=request.logits,
                resume=request.resume,
                overwrite=request.output.overwrite,
            )
            folder.check_usable()
            settings = WorkerSettings(
                graph=graph,
                dtype=shards[0].dtype.name,
                device=request.device,
                precision=request.precision,
                logits=request.logits,
                compressed=any(shard.is_sequential for shard in shards),
            )
        runner, device_info, check_interrupt = stack.enter_context(open_runner(request, settings))
        identity = Identity(
            network=_network_display_name(network),
            weights=weights.sha256,
            precision=device_info.arithmetic,
            classes=graph.class_count,
        )
        with tqdm(total=len(shards), desc="checking", unit=" shards", leave=False, disable=None) as bar:

            def advance_bar(count: int) -> None:
                check_interrupt()
                bar.update(count)

            stack.enter_context(folder.create_and_lock(identity, advance_bar))
        for note in folder.notes:
            print_to_stderr(f"note: {note}")
        timer = Timer()
        work = ClassifyRun(shards, parts, device_info, folder, unreadable)
        try:
            work.classify_remaining(runner)
        except KeyboardInterrupt:
            if not folder.receipts:
                raise
            done = f"{len(folder.receipts):,} of {len(paths):,} shards have their labels"
            raise UserError(f"interrupted; {done}: run this again with --resume") from None
        seconds = timer.seconds
    if not folder.receipts:
        raise unreadable.unreadable_shards_error()
    figures = build_report(network.network, weights, folder, [*unreadable.found.values()], work.tally, seconds)
    publish_report(figures, as_text, request.output)
    if unreadable.found:
        raise unreadable.unreadable_shards_error()
    return 0


def _open_shards(
    request: ClassifyRequest, paths: list[Path], graph: Graph, unreadable: UnreadableShards
) -> tuple[Graph, list[Shard]]:
    """Open the shards; return the network for the shape of their images, and the readable shards.

    If images differ from the first shard's in shape or type, their shard is unreadable. Raises UserError if all shards
    are, or if one is and ``--start`` or ``--count`` needs its number of images.
    """
    unlabelled = request.labels == UNLABELLED
    named = None if request.labels is None or unlabelled else find_shards([request.labels])
    if named is not None and len(named) != len(paths):
        raise UserError(f"--labels names {len(named)} files for {len(paths)} shards: name one for each, in their order")
    shards: list[Shard] = []
    with hdf5_process.Reader() as hdf5:  # one process for all files
        for number, path in enumerate(paths):
            try:
                shard = open_shard(path, named[number] if named else None, unlabelled=unlabelled, hdf5=hdf5)
                if not shards:
                    graph = graph_for_images(graph, _placeholder_dataset(shard))
                elif (shard.image_shape, shard.dtype) != (shards[0].image_shape, shards[0].dtype):
                    forms = [f"{one.path} has {one.dtype} images of {one.image_shape}" for one in (shard, shards[0])]
                    raise UserError(f"{', but '.join(forms)}: classify them in runs of their own")
                shards.append(shard)
            except UserError as error:
                if request.start or request.count is not None:
                    raise  # ``select_image_ranges`` needs the number of images
                unreadable.add(path, str(error))
    if not shards:
        raise unreadable.unreadable_shards_error()
    return graph, shards


def _network_display_name(graph: Graph) -> str:
    """Return the network's name, marked if it is a user's network with the name of a listed one."""
    network = graph.network
    return network.name if is_listed_network(network) else f"{network.name} ({network.digest[:12]})"


def _placeholder_dataset(shard: Shard) -> Dataset:
    """Return zeros of the shard's shape and type, which take no memory, to check whether the network accepts them."""
    images = np.broadcast_to(np.zeros((), shard.dtype), (shard.count, *shard.image_shape))
    return Dataset(images, None, None, str(shard.path), None)
