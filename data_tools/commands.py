"""Define the commands of ``python -m data_tools`` and their options; run fetch, verify and info."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from app.base.errors import UserError, escape_unprintable
from app.terminal.console import Parser
from app.terminal.text import Column, fields, paragraph, table
from data_tools import bundle, calibration, enlarge, fashion_mnist
from data_tools.fashion_mnist import CLASSES, SPLITS

COUNTS = [Column("class", left=True), Column("images")]


def fetch_splits(splits: Sequence[str], data_dir: Path | None) -> None:
    """Fetch missing splits into ``data_dir`` or the cache; print the directory of each split. Raises UserError."""
    for split in splits:
        directory = (
            fashion_mnist.fetch_split(split, data_dir) if data_dir else fashion_mnist.open_split(split).directory
        )
        print(escape_unprintable(f"{split}: {directory}"))


def verify_splits(splits: Sequence[str], data_dir: Path | None) -> None:
    """Print OK for each good copy in the searched directories. Raise UserError if one is bad or a file has no copy."""
    failures = []
    directories = fashion_mnist.search_dirs(data_dir)
    for file in (file for split in splits for file in SPLITS[split]):
        paths = [path for directory in directories for path in fashion_mnist.existing_copies(file, directory)]
        if not paths:
            places = " or ".join(map(str, directories))
            there = f" --data-dir {data_dir}" if data_dir else ""
            failures.append(f"{file.name}.gz is not in {places}; run: python -m data_tools fetch{there}")
        for path in paths:
            try:
                fashion_mnist.read_verified_file(path, file)
                print(escape_unprintable(f"OK  {path}"))
            except UserError as error:
                failures.append(str(error))
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise UserError(failures[0] + more)


def print_split_info(splits: Sequence[str], data_dir: Path | None) -> None:
    """Print shapes, classes, mean pixel, hashes and directory of each split; fetch missing ones. Raises UserError."""
    for split in splits:
        images, labels, directory = fashion_mnist.open_split(split, data_dir)
        print(escape_unprintable(f"{split} split, from {directory}"))
        arrays = {
            "images": f"{images.shape} {images.dtype}, mean pixel {images.mean():.3f} of 255",
            "labels": f"{labels.shape} {labels.dtype}",
        }
        counts = np.bincount(labels, minlength=len(CLASSES))
        lines = [*fields(arrays.items()), *table(COUNTS, zip(CLASSES, map(str, counts), strict=True))]
        for file in SPLITS[split]:
            lines += paragraph(f"SHA-256 of {file.name} {file.sha256}", first="  ", following="    ")
        print("\n".join(lines))


COMMANDS = {
    "fetch": (fetch_splits, "download missing data, and print their folder"),
    "verify": (verify_splits, "check every copy of the data against the known SHA-256"),
    "info": (print_split_info, "print shapes, classes, class counts, mean pixel value and hashes"),
}


def command_parser() -> Parser:
    """Return the parser for the arguments of all commands."""
    parser = Parser(
        prog="python -m data_tools",
        description="Fetch, verify, describe and resize Fashion-MNIST; prune, round, quantise and ship weights.",
        epilog="These commands search --data-dir alone if it is given, else $FASHION_MNIST_DIR, the cache "
        "($LENET_CACHE_DIR, $XDG_CACHE_HOME/lenet5-inference or ~/.cache/lenet5-inference) and "
        "/usr/share/datasets/fashion-mnist. They fetch missing data from three mirrors or, on Debian and Ubuntu, by "
        "apt-get (needs no root).",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        where = "folder to put the files in" if name == "fetch" else "folder with the files"
        command.add_argument("--data-dir", type=Path, metavar="DIR", help=where)
        command.add_argument(
            "--split", choices=[*SPLITS, "both"], default="both", help="split to use (default: %(default)s)"
        )
    for module in (enlarge, calibration, bundle):
        for name, (body, texts) in module.COMMANDS.items():
            command = commands.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
            module.add_options(command)
            command.set_defaults(run=body)
    return parser


def run_command(arguments: Sequence[str] | None) -> int:
    """Run the command in ``arguments`` (None: those of this process); return 0. Raises UserError."""
    options = command_parser().parse_args(arguments)
    if options.command in COMMANDS:
        splits = list(SPLITS) if options.split == "both" else [options.split]
        COMMANDS[options.command][0](splits, options.data_dir)
    else:
        options.run(options)
    return 0
