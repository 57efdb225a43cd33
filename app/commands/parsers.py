"""Build the parser of each command, and its request: the dataclass of its options' values."""

import argparse
import importlib
import keyword
import sys
from types import ModuleType
from typing import Any

from app import VERSION
from app.terminal.console import Parser
from app.terminal.options import add_options, request_from_values
from app.terminal.text import paragraph

# Every command except the main job, with its summary, in the order of ``main.py --help``.
COMMANDS = {
    "predict": "Classify your own pictures or arrays; write CSV, JSON and others.",
    "classify": "Label the images of many files, of any size, in constant memory.",
    "networks": "List every network: input, layers, parameters, FLOPs, accuracy.",
    "accuracy": "Count every network's correct answers; compare with old reports.",
    "evaluate": "Show what a network gets wrong, or how two networks differ.",
    "graph": "Print a network: shapes, FLOPs, bytes, each layer's kernel.",
    "kernels": "List every kernel: its idea, origin, limits and number types.",
    "precompile": "Compile the kernels of python main.py before its first run.",
    "check": "Check one kernel on small shapes, also without a GPU.",
    "bench": "Check and time every kernel, layer by layer (GPU).",
    "rank": "Rank kernels of your own by records that bench wrote.",
    "learn": "Mend and write ten kernels, exercises that check judges.",
    "ladder": "Climb the ladder: each step's predicted and measured time.",
    "sweep": "Find the best tile sizes of one kernel for this card (GPU).",
    "profile": "Time the kernels, copies and CUDA calls of python main.py (GPU).",
    "compare": "Compare reports: what became slower or faster.",
    "import": "Turn a weights file of another system into one of this program.",
    "export": "Write a network and its weights as ONNX, safetensors or NPZ.",
    "doctor": "Print what a bug report needs, and what is missing for what.",
    "cache": "List or clear compiled kernels and fetched data.",
    "train": "Train a network on Fashion-MNIST, on a GPU or slowly on the CPU.",
}
MAIN_JOB = "run"
SHELLS = ("bash", "zsh", "fish")
CODES = "exit codes:"
HELP_WIDTH = 78  # of argparse in a terminal of 80 columns
DESCRIPTIONS = COMMANDS | {MAIN_JOB: "Classify images with LeNet-5 on an NVIDIA GPU, or on the CPU without one."}


def load_parser(name: str) -> Parser:
    """Return the parser of one of the ``COMMANDS``, or of the main job, which ``main.py`` runs without a command."""
    module = _options_module(name)
    epilog: str = module.EPILOG
    if CODES not in epilog:
        failed = getattr(module, "FAILED", "")
        codes = (
            f"{CODES} 0 done;{failed and f' 1 {failed};'} 2 wrong usage, files or device, or an interruption; 3 a bug."
        )
        epilog += "\n" + "\n".join(paragraph(codes, HELP_WIDTH)) + "\n"
    parser = Parser(
        prog="main.py" if name == MAIN_JOB else f"main.py {name}",
        description=DESCRIPTIONS[name],
        epilog=epilog,
        usage=getattr(module, "USAGE", None),
    )
    parser.separator = getattr(module, "SEPARATOR", None)
    if name == MAIN_JOB:
        parser.add_argument("--version", action="version", version=f"lenet5-inference {VERSION}")
        what = "print a script that completes options in this shell; eval it in the shell's start-up file"
        parser.add_argument("--completion", action=_Completion, choices=SHELLS, metavar="SHELL", help=what)
    add_options(parser, _request_type(name))
    return parser


class _Completion(argparse.Action):
    """Argparse action of ``--completion``: print the completion script and exit."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, option: str | None = None) -> None:
        from app.commands.completion import completion_script  # imported only here: other commands need none

        parsers = {name: load_parser(name) for name in DESCRIPTIONS}
        sys.stdout.write(completion_script(shell, parsers, COMMANDS, MAIN_JOB))
        parser.exit()


def make_request(name: str, options: argparse.Namespace) -> Any:
    """Return the dataclass of a command's options, with the values that ``load_parser(name)`` parsed.

    Raises UserError for options that contradict each other.
    """
    return request_from_values(_request_type(name), vars(options))


def command_module(name: str) -> str:
    """Return the name, relative to app, of the module that runs the command; it is imported only for that."""
    body: str = _options_module(name).BODY
    return body


def python_identifier(command: str) -> str:
    """Return the Python name of a command's module and function: the command's name, but ``import_`` for ``import``."""
    return f"{command}_" if keyword.iskeyword(command) else command


def _options_module(name: str) -> ModuleType:
    """Return the module of app/commands that defines a command's options."""
    return importlib.import_module(f"{__package__}.{python_identifier(name)}")


def _request_type(name: str) -> type:
    """Return the dataclass that defines a command's options: ``GraphRequest`` for ``graph``."""
    request: type = getattr(_options_module(name), f"{name.capitalize()}Request")
    return request
