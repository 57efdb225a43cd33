"""``main.py doctor``: what a bug report needs, and what is missing for which feature."""

from itertools import groupby
from operator import itemgetter

from app.base.interrupts import exit_on_interrupt
from app.commands.doctor import DoctorRequest
from app.records.operate import Doctor
from app.terminal.output import publish
from app.terminal.text import INDENT, fields, paragraph
from app.tools.card import card
from app.tools.machine import environment, packages, storage, system


def doctor(request: DoctorRequest) -> int:
    """Look at the machine and print what was found. Returns 0; raises UserError."""
    with exit_on_interrupt():
        found = [one for part in (system, packages, card, storage, environment) for one in part()]
    document: Doctor = {"schema": "lenet5-inference/doctor/1", "findings": found}
    publish(document, as_text, request.output)
    return 0


def as_text(document: Doctor, width: int) -> str:
    """Format the document: a block for each area, then what is missing with its remedy."""
    lines: list[str] = []
    for area, found in groupby(document["findings"], key=itemgetter("area")):
        lines += [area, *fields([(one["name"], one["value"]) for one in found], width)]
    missing = [one for one in document["findings"] if one["missing"]]
    lines += ["", "missing" if missing else "nothing is missing"]
    for one in missing:
        told = f"{one['area']}, {one['name']}: for {one['needed_for']}: {one['remedy']}"
        lines += paragraph(told, width, INDENT, 2 * INDENT)
    return "\n".join(lines)
