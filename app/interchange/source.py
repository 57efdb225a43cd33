"""The content of a foreign file, as every reader returns it.

To add a format, write ``app/interchange/<format>.py`` with a function ``read(content, asked) -> Source``, and add a row
to ``FORMATS`` in app/network/foreign.py. The reader raises BadValueError for every fault, in one line that begins with
a verb, or with the name of an array, and ends with a remedy; ``read`` here puts the path in front, and checks the
numbers. The reader leaves the rest to the command: conversion to the weights file's layout (layout.py), checks of
shapes, the comparison of scores, writing.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.files.checks import BadValueError
from app.files.formats import START_BYTES, recognise_file_kind
from app.files.reading import read_file
from app.interchange.numbers import MAX_FILE_BYTES, check_numbers
from app.network.definitions import Network
from app.network.foreign import FORMATS, Format


class Asked(Frozen):
    """What the user said about the file; None for what was left out. A reader refuses what it does not use.

    network: names layers. symbol: an MXNet symbol file. size: height and width of the images that the layers read.
    name, path: for a network that the file does not name, and where the file is; they are not the user's, so they are
    ignored in comparisons.
    """

    network: Network | None = None
    symbol: Path | None = None
    size: int | None = None
    name: str = field(default="imported", compare=False)
    path: Path | None = field(default=None, compare=False)


class Engine(Frozen):
    """An installed engine that runs the file itself.

    name: with its version. logits: images (B, C, H, W) uint8, as the network reads them → the scores before a softmax,
    (B, classes).
    """

    name: str
    logits: Callable[[np.ndarray], np.ndarray]


class Source(Frozen):
    """A network and its arrays in their origin's layout.

    arrays: as our weights files name them: filters (M, C, K, K), fully connected weights (out, in) over the features in
    C, H, W order, biases <layer>_bias (out,); finite float32. origins: our name → the name in the file, where it has
    one. notes: what the reader converted, assumed or left out, each in a sentence. engine: None where only plain NumPy
    can check the import. unchanged: whether the file has the layout of weights files already. input_scale, classes:
    what the file says of the factor of bytes 0 to 255 and of the classes' names; None where the network's, or none.
    """

    network: Network
    arrays: Mapping[str, np.ndarray]
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()
    engine: Engine | None = None
    unchanged: bool = False
    input_scale: float | None = None
    classes: tuple[str, ...] | None = None

    @property
    def scale(self) -> float:
        """The factor of bytes 0 to 255: the file's if it has one, else the network's."""
        return self.network.pixel_scale if self.input_scale is None else self.input_scale


def read(path: Path, asked: Asked) -> tuple[str, Source]:
    """Read the file; return the name of its format and its content. Raises UserError for every fault."""
    content = read_file(path, MAX_FILE_BYTES)
    found = _choose_format(path, content[:START_BYTES])
    try:
        source: Source = importlib.import_module(f"{__package__}.{found.module}").read(
            content, replace(asked, path=path)
        )
        check_numbers(source.arrays)
    except BadValueError as error:
        raise UserError(f"{path}: {error}") from error
    return found.name, source


def _choose_format(path: Path, start: bytes) -> Format:
    """Choose the format by the kind of the content, else by the file's ending."""
    kind, name = recognise_file_kind(start), path.name.lower()
    found = next((row for row in FORMATS if (row.kind == kind if kind else name.endswith(row.ending))), None)
    if found is None:
        known = ", ".join(f"{row.name} ({row.ending})" for row in FORMATS)
        raise UserError(f"{path} is {kind or 'of an unknown format'}; import reads {known}")
    return found
