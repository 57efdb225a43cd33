"""Define the help of the main job, which ``main.py`` runs if no command is given; RunRequest has its options."""

from app.commands.parsers import COMMANDS
from app.engine.request import RunRequest
from app.terminal.text import fields

__all__ = ["EPILOG", "USAGE", "RunRequest"]

USAGE = "%(prog)s [options]\n       %(prog)s COMMAND [options]"
LISTED = "\n".join(fields(COMMANDS.items()))
EPILOG = f"""\
examples:
  python main.py --batch 10000               10,000 Fashion-MNIST test images
  python main.py --batch 60000 --split train
                                             all training images
  python main.py --batch 1000000 --cycle     the test images 100 times
  python main.py --weights model.hdf5 --data test100.hdf5
                                             your own weights and images
  python main.py --compare fp16              how speed and labels change in fp16
  python main.py --batch 10000 --json -      the report as JSON

commands, each with its own --help (python main.py COMMAND --help):
{LISTED}

exit codes: 0 no verdict failed; 1 one failed; 2 wrong usage, data, weights or
device, or an interruption (Ctrl-C, SIGTERM, SIGHUP); 3 a bug in the program.
"""
