"""The work of ``classify``: pieces out to the devices, results into the folder."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from app.base.clock import Timer
from app.base.errors import UserError
from app.classify.outputs import OutputFolder, Window
from app.classify.pieces import Fault, Piece, Place, Result, Runner, cut, piece_size
from app.classify.report import Tally
from app.classify.shards import Shard, ShardError

NAMED = 3  # unreadable shards in the last error


@dataclass
class Faults:
    """Those of so many ``shards`` that cannot be read, and why. They are told as they are found."""

    shards: int
    found: dict[Path, str] = field(default_factory=dict)

    def add(self, path: Path, reason: str) -> None:
        """Note a fault; only a shard's first one counts."""
        if path in self.found:
            return
        self.found[path] = reason
        if self.shards > 1:
            tqdm.write(f"unreadable: {reason}", file=sys.stderr)

    def error(self) -> UserError:
        """Return the error that names them."""
        if self.shards == 1:
            return UserError(*self.found.values())
        names = ", ".join(map(str, [*self.found][:NAMED]))
        more = f" and {len(self.found) - NAMED:,} more" if len(self.found) > NAMED else ""
        others = "the others have their labels" if len(self.found) < self.shards else "nothing is written"
        return UserError(f"{len(self.found):,} of {self.shards:,} shards cannot be read ({names}{more}); {others}")


@dataclass
class Work:
    """What is to be done. windows: first image and number of images of each shard. place: one of the devices."""

    shards: Sequence[Shard]
    windows: Sequence[Window]
    place: Place
    folder: OutputFolder
    faults: Faults
    tally: Tally = field(default_factory=Tally)

    def do(self, runner: Runner) -> None:
        """Classify what remains and store it. Raises UserError if that cannot go on."""
        total = sum(self.windows[number][1] for number in self.folder.wanted)
        with (
            tqdm(total=total, unit=" images", unit_scale=True, disable=None) as bar,
            closing(runner.run(self._pieces())) as answers,
        ):
            for piece, answer in answers:
                if isinstance(answer, Fault):
                    self.faults.add(piece.shard.path, answer.reason)
                    self.folder.abandon(piece.number)
                elif piece.shard.path not in self.faults.found:
                    try:
                        self._store(piece, answer)
                    except ShardError as error:
                        self.faults.add(piece.shard.path, str(error))
                bar.update(piece.count)

    def _pieces(self) -> Iterator[Piece]:
        """Cut the shards; those that proved unreadable are left out."""
        size = piece_size(self.place)
        for number in self.folder.wanted:
            for piece in cut(number, self.shards[number], *self.windows[number], size):
                if piece.shard.path not in self.faults.found:
                    yield piece

    def _store(self, piece: Piece, result: Result) -> None:
        here, there = self.place, result.place
        if here.arithmetic != there.arithmetic:
            raise UserError(
                f"{here.host} computes in {here.arithmetic}, {there.host} in {there.arithmetic}: their results may "
                "differ; name one --precision or --device, or use machines of one kind"
            )
        timer = Timer()
        self.folder.write(piece.number, piece.first, result.labels, result.logits, result.correct)
        self.tally.writing += timer.seconds
        self.tally.add(piece, result)
