"""``main.py compare``: its options."""

from dataclasses import dataclass
from pathlib import Path

from app.console import typed
from app.files import checks
from app.options import option, options
from app.output import Output

EPILOG = """\
examples:
  python main.py --json before.json
  python main.py --json after.json
  python main.py compare before.json after.json
      what became slower or faster, row by row
  python main.py compare before.json after.json --fail-above 3%
      exit code 1 if a row became slower by over 3 %, and that is not noise
  python main.py compare fp32.json fp16.json --ignore-settings

Both files are JSON of one command: of the main job, bench (kernels, --peers,
--scenario, --training), sweep or train. compare refuses reports of different
machines or settings. The interval covers the noise within the two runs; two
runs of the same program differ by about 1 %, so smaller changes are 'same'.
"""


def percentage(text: str) -> float:
    """Parse ``3%`` or ``3``."""
    return float(
        typed(lambda part: float(part.removesuffix("%")), "a percentage such as 3%", checks.number(0, 1e6))(text)
    )


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    before: Path = option("JSON of the first run", name="before", metavar="BEFORE")
    after: Path = option("JSON of the second run, of the same command", name="after", metavar="AFTER")
    fail_above: float | None = option(
        "end with exit code 1 if a row became slower by over X percent", type=percentage, metavar="X%"
    )
    ignore_settings: bool = option("compare reports of different machines or settings, too", False)
    output: Output = options(what="the comparison")
