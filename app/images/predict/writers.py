"""Format answers as columns, and write them to files (CSV, JSON lines, NPY, NPZ, Parquet) or as a table."""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from app.base.errors import UserError, did_you_mean_hint, pip_install_command
from app.base.frozen import Frozen
from app.files.hdf5 import printable_line
from app.files.writing import replace_atomically
from app.images.predict.inputs import Columns, Part
from app.terminal.text import Column, table

UNSURE = "unsure"
DOUBTED = 0.6  # pictures with a lower probability get a note: docs/predict.md, "How well it works"


class AnswerLayout(Frozen):
    """Which columns the answers have. classes: names of the classes; None: no column has names.

    top: number of classes, the likeliest first; the second has columns label_2, class_2 and probability_2. logits: adds
    logit_0, logit_1 and so on. paths, numbers: add the file of each image, and its index in the file. notes: adds
    reasons for which an answer may be wrong. least: probability below which the first class is named ``UNSURE``.
    """

    classes: Sequence[str] | None
    top: int
    logits: bool
    paths: bool
    numbers: bool
    notes: bool
    least: float

    def make_columns(self, part: Part, labels: np.ndarray, logits: np.ndarray, probabilities: np.ndarray) -> Columns:
        """Return the columns for some images. labels: (n,) uint8. logits, probabilities: (n, classes) float32."""
        found: Columns = {}
        if self.paths:
            found["path"] = part.paths
        if self.numbers:
            found["number"] = np.array(part.numbers, np.int64)
        ranked = likeliest_classes(labels, logits, self.top)
        chances = np.take_along_axis(probabilities, ranked.astype(np.intp), axis=1)
        for rank in range(self.top):
            suffix = f"_{rank + 1}" if rank else ""
            found[f"label{suffix}"] = ranked[:, rank]
            if self.classes is not None:
                found[f"class{suffix}"] = [self.classes[label] for label in ranked[:, rank]]
            found[f"probability{suffix}"] = chances[:, rank]
        if self.classes is not None and self.least:
            sure = chances[:, 0] >= self.least
            found["class"] = [name if enough else UNSURE for name, enough in zip(found["class"], sure, strict=True)]
        if self.notes:
            found["note"] = _doubt_notes(part, chances[:, 0])
        if self.logits:
            found |= {f"logit_{index}": column for index, column in enumerate(logits.T)}
        return found


def _doubt_notes(part: Part, chances: np.ndarray) -> list[str]:
    """Return for each image the reasons for which its answer may be wrong, or an empty text. chances: probabilities."""
    low = part.pictures & ~(chances >= DOUBTED)  # NaN is low
    return [
        "; ".join([*doubts, *["low probability"] * bool(one)]) for doubts, one in zip(part.doubts, low, strict=True)
    ]


def likeliest_classes(labels: np.ndarray, logits: np.ndarray, top: int) -> np.ndarray:
    """Return each image's ``top`` likeliest classes, (n, top) uint8: its label, then others by logit, then number."""
    others = np.arange(logits.shape[1]) != labels[:, None]
    return np.lexsort((-logits, others), axis=1)[:, :top].astype(np.uint8)


Write = Callable[[Columns], object]
"""Writes the columns of some images; each call has the same columns, for the next images."""
STDOUT = "-"
PARQUET = ".parquet"


@contextmanager
def open_writer(out: str | None, *, overwrite: bool, form: str, width: int | None) -> Iterator[Write]:
    """Yield a function that takes the answers part by part; write them to a file when the block ends.

    out: a file, whose suffix names the format; ``-`` or None: standard output. form: format there, csv or jsonl. width:
    if given, and ``out`` is None, write a table instead, with lines of so many characters. If the block raises, nothing
    is written. Raises UserError if the file cannot be written.
    """
    if out is None and width is not None:
        with _collecting_writer(lambda part: print("\n".join(_answer_table(part, width)))) as write:
            yield write
    elif out is None or out == STDOUT:
        with tempfile.TemporaryFile() as whole:
            with WRITERS[f".{form}"](whole) as write:
                yield write
            whole.seek(0)
            sys.stdout.flush()
            if sys.stdout.isatty():  # as text, which is made harmless there
                sys.stdout.writelines(line.decode("utf-8", "surrogateescape") for line in whole)
            else:
                shutil.copyfileobj(whole, sys.stdout.buffer)
    else:
        path = Path(out)
        write_to = WRITERS[path.suffix.lower()]
        with replace_atomically(path, overwrite=overwrite) as new, new.open("wb") as file, write_to(file) as write:
            yield write


def check_output_suffix(out: str | None) -> None:
    """Raise UserError if the file's suffix names no format, or a format whose package is missing."""
    if out is None or out == STDOUT:
        return
    ending = Path(out).suffix.lower()
    if ending not in WRITERS:
        raise UserError(
            f"--out {out} has no known ending: let it end with one of {', '.join(WRITERS)}, or give - for "
            f"standard output{did_you_mean_hint(ending, WRITERS)}"
        )
    if ending == PARQUET:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise UserError(f"--out {out} needs pyarrow: {pip_install_command('parquet')}") from None


def csv_field(text: str) -> str:
    """Return a CSV field, quoted if necessary. (The csv module does not quote a carriage return.)"""
    if any(mark in text for mark in ',"\r\n') or text != text.strip():
        return '"' + text.replace('"', '""') + '"'
    return text


def _shortest_decimals(column: np.ndarray) -> list[str]:
    """Return numbers as texts in the fewest digits that distinguish them from all other numbers of their type."""
    found: list[str] = column.astype(str).tolist()
    return found


@contextmanager
def _csv_writer(file: Any) -> Iterator[Write]:
    """Yield a function that writes CSV: a line of names, then a line per image; quoted as in RFC 4180, Unix line ends.

    The encoding is UTF-8; bytes of names that are not UTF-8 stay unchanged.
    """
    begun = False

    def write_csv_lines(part: Columns) -> None:
        nonlocal begun
        cells = [
            map(csv_field, column) if isinstance(column, list) else _shortest_decimals(column)
            for column in part.values()
        ]
        rows = chain(() if begun else [part], zip(*cells, strict=True))
        file.writelines(f"{','.join(row)}\n".encode("utf-8", "surrogateescape") for row in rows)
        begun = True

    yield write_csv_lines


@contextmanager
def _json_lines_writer(file: Any) -> Iterator[Write]:
    r"""Yield a function that writes a JSON object per line in ASCII; bytes that are not UTF-8 become ``\udcXX``."""

    def write_json_lines(part: Columns) -> None:
        values = [column if isinstance(column, list) else _json_numbers(column) for column in part.values()]
        for row in zip(*values, strict=True):
            file.write(json.dumps(dict(zip(part, row, strict=True)), allow_nan=False).encode() + b"\n")

    yield write_json_lines


def _json_numbers(column: np.ndarray) -> list[Any]:
    """Return numbers for JSON, with None (null) for NaN and infinity."""
    if column.dtype.kind != "f":
        return list(column.tolist())
    return [
        float(text) if finite else None
        for text, finite in zip(_shortest_decimals(column), np.isfinite(column), strict=True)
    ]


@contextmanager
def _collecting_writer(write: Write) -> Iterator[Write]:
    """Yield a function that collects columns of images; when the block ends, call ``write`` once with all of them."""
    parts: list[Columns] = []
    yield parts.append
    if parts:
        write({name: _concatenate_pieces([part[name] for part in parts]) for name in parts[0]})


def _concatenate_pieces(pieces: Sequence[list[str] | np.ndarray]) -> list[str] | np.ndarray:
    if isinstance(pieces[0], list):
        return [text for piece in pieces for text in piece]
    return np.concatenate(pieces)


def _npy_writer(file: Any) -> AbstractContextManager[Write]:
    """Yield a function that writes an NPY file: one structured array with a field per column."""

    def write_npy(part: Columns) -> None:
        arrays = {name: np.asarray(column) for name, column in part.items()}
        rows = np.empty(len(next(iter(arrays.values()))), [(name, array.dtype) for name, array in arrays.items()])
        for name, array in arrays.items():
            rows[name] = array
        np.save(file, rows, allow_pickle=False)

    return _collecting_writer(write_npy)


def _npz_writer(file: Any) -> AbstractContextManager[Write]:
    """Yield a function that writes an NPZ file: one array per column."""
    return _collecting_writer(lambda part: np.savez(file, **part))  # type: ignore[arg-type]


@contextmanager
def _parquet_writer(file: Any) -> Iterator[Write]:
    r"""Yield a function that writes Parquet, a row group per call. Bytes of names outside UTF-8 become ``\udcXX``."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    opened: list[ParquetWriter] = []

    def write_row_group(part: Columns) -> None:
        plain = {
            name: [text.encode("utf-8", "backslashreplace").decode() for text in column]
            if isinstance(column, list)
            else column
            for name, column in part.items()
        }
        rows = pyarrow.table(plain)
        if not opened:
            opened.append(ParquetWriter(file, rows.schema))
        opened[0].write_table(rows)

    try:
        yield write_row_group
    finally:
        for one in opened:
            one.close()


WRITERS: Mapping[str, Callable[[Any], AbstractContextManager[Write]]] = {
    ".csv": _csv_writer,
    ".jsonl": _json_lines_writer,
    ".npy": _npy_writer,
    ".npz": _npz_writer,
    PARQUET: _parquet_writer,
}


def _answer_table(part: Columns, width: int) -> list[str]:
    """Return the lines of a table with a row for each image of ``part``, of at most ``width`` characters a line.

    Columns: image, class or label, probability, then the next likeliest classes.
    """
    shown: list[tuple[str, list[str]]] = []
    for name in ("path", "number"):
        if name in part:
            shown.append((name, [printable_line(str(value), 4096) for value in part[name]]))
    kind = "class" if "class" in part else "label"
    shown.append((kind, [str(value) for value in part[kind]]))
    shown.append(("probability", [_format_percent(value) for value in part["probability"]]))
    ranks = [name.removeprefix("probability") for name in part if name.startswith("probability_")]
    following = [
        [
            f"{value} {_format_percent(chance)}"
            for value, chance in zip(part[kind + rank], part[f"probability{rank}"], strict=True)
        ]
        for rank in ranks
    ]
    if following:
        shown.append(("then", [", ".join(row) for row in zip(*following, strict=True)]))
    if any(part.get("note", ())):
        shown.append(("note", [*part["note"]]))
    heads = [Column(name, left=name not in ("number", "probability")) for name, _ in shown]
    return table(heads, [*zip(*(cells for _, cells in shown), strict=True)], width)


def _format_percent(chance: Any) -> str:
    return f"{float(chance):.1%}"
