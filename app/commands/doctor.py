"""Define the options of ``main.py doctor``."""

from app.base.frozen import Frozen
from app.terminal.options import options
from app.terminal.output import Output

BODY = "tools.doctor"
EPILOG = """\
examples:
  python main.py doctor            what this machine has, and what is missing
  python main.py doctor --json -   the same for programs

Put the output into a bug report: system, packages, GPU, cache, data. For each
missing thing it prints what does not work without it, and the remedy. doctor
writes no file, fetches nothing and works without a GPU.
"""


class DoctorRequest(Frozen, kw_only=True):
    """Options of ``doctor``: where to write its findings."""

    output: Output = options(what="the findings")
