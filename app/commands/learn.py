"""Define the options of ``main.py learn``."""

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.engine.request import device_option
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "ladder.exercises.command"
ACTIONS = ("list", "next", "check", "hint")
EPILOG = """\
examples:
  python main.py learn           the ten exercises, and which are solved
  python main.py learn next      copy the first unsolved one to this folder
  python main.py learn check     is its kernel right?
  python main.py learn hint      one hint more
  python main.py learn next 5    another exercise, by number or name

Each exercise is a kernel with a fault or a gap, from the index of a thread to
a product on tensor cores; the last one is yours to write. The task is in the
first lines of the file. Edit the file, and check it as check FILE.cu does: on
a GPU, or by g++ without one. next never replaces a file: rename or remove
yours to begin again. Solutions are in app/ladder/exercises/solutions.
$LENET_CACHE_DIR/learn/progress.json records what is solved; without that
variable the folder is that of main.py cache.
"""
FAILED = "the kernel is wrong"


class LearnRequest(Frozen, kw_only=True):
    """Options of ``learn``. Raises UserError if ``list``, which shows all exercises, is given the name of one."""

    action: str = option(
        "list (default), next (copy an exercise to this folder), check (judge it) or hint (show one more)",
        "list",
        name="action",
        nargs="?",
        choices=ACTIONS,
        group="what",
    )
    exercise: str | None = option(
        "number or name of an exercise (default: the first unsolved one)", name="exercise", nargs="?"
    )
    device: str = device_option(group="where")
    output: Output = options("report", what="the list, the hints or the verdicts")

    def __post_init__(self) -> None:
        if self.action == "list" and self.exercise is not None:
            raise UserError(f"list shows all exercises: leave {self.exercise} out, or name next, check or hint")
