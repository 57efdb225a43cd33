"""``main.py doctor``: what a bug report needs, and what is missing for which feature."""

from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

from app.commands.options.doctor import DoctorRequest
from app.interrupts import exit_on_interrupt
from app.operate.card import card
from app.operate.machine import environment, packages, system
from app.operate.storage import storage
from app.report import publish
from app.text import INDENT, fields, paragraph

SCHEMA = "lenet5-inference/doctor/1"


def doctor(request: DoctorRequest) -> int:
    """Look at the machine and print what was found. Returns 0; raises UserError."""
    with exit_on_interrupt():
        found = [one for part in (system, packages, card, storage, environment) for one in part()]
    document = {"schema": SCHEMA, "findings": [{**vars(one), "missing": one.missing} for one in found]}
    publish(document, as_text, request.output)
    return 0


def as_text(document: Mapping[str, Any], width: int) -> str:
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
