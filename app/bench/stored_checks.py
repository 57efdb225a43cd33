"""What the JSON files that the documents are made of must hold: every field that is read, and what it may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.bench.ladder.results import SCHEMA
from app.files.checks import (
    BadValueError,
    Check,
    fields,
    flag,
    items,
    mapping,
    nullable,
    number,
    one_of,
    row,
    shown,
    text,
    whole,
)
from app.kernels.problems import ITEMSIZE, ConvProblem
from app.precision import PRECISIONS, SHORT

LINE = text(4000)
NAME = nullable(LINE)
SIZE, COUNT = whole(0, 10**12), whole(1, 10**12)
AMOUNT, SOME = number(0, 1e15), nullable(number(0, 1e15))
TIME = number(1e-9, 1e15)  # divided by; ms mostly
TIMED = nullable(TIME)
STEP = nullable(whole(0, 1000))
DTYPE = one_of(*SHORT)
PRECISION = one_of(*PRECISIONS)


def read(checks: Mapping[str, Check], *optional: str) -> Check:
    """An object with these fields, among others."""
    return fields(checks, optional=optional, others=True)


def problem_of(key: Any) -> ConvProblem:
    """The inverse of ``problems.key`` for a convolution. Raises BadValueError."""
    kinds = {"True": True, "False": False}
    pairs = (part.partition("=") for part in LINE(key).split()[1:])
    values: dict[str, Any] = {
        name: int(said) if said.isdecimal() and len(said) < 10 else kinds.get(said, said) for name, _, said in pairs
    }
    try:
        problem = ConvProblem(**values)
        if all(COUNT(size) for size in (*problem.sizes, *problem.convolved)) and problem.output_dtype in ITEMSIZE:
            return problem
    except (TypeError, BadValueError):
        pass
    raise BadValueError(f"{shown(key)} is not the key of a convolution")


def _peaks(value: Any) -> dict[str, float]:
    return mapping(TIME)(read({"float32": TIME})(value))


def _table(value: Any) -> dict[str, Any]:
    table: dict[str, Any] = _TABLE(value)
    if table["is_op"]:
        problem_of(table["problems"].get("float32"))
    return table


def _bench(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = _BENCH(value)
    names = [table["item"] for table in found["tables"]]
    ops = [table["item"] for table in found["tables"] if table["is_op"]]
    if len(set(names)) < len(names) or len(ops) != 2:
        raise BadValueError("its tables are not of different items, two of them convolutions")
    if not any(entry["ms"] for entry in found["whole_program"]):
        raise BadValueError("no variant of the whole program was timed")
    return found


def _counters(value: Any) -> Any:
    rows: list[dict[str, Any]] = items(_COUNTER)(value)
    if any(found["throughput"].keys() != rows[0]["throughput"].keys() for found in rows):
        raise BadValueError("its rows are of different units")
    return rows


def _counts(value: Any) -> dict[str, float]:
    shares: dict[str, float] = mapping(number(0, 1))(value)
    for name in shares:
        if not (name.isdecimal() and len(name) < 10):
            raise BadValueError(f"{shown(name)} is not a number of images")
    return shares


def _version(value: Any) -> dict[str, Any]:
    version: dict[str, Any] = _VERSION(value)
    if ("ops" in version) == ("sum" in version):
        raise BadValueError("neither ops nor sum, or both")
    return version


CARD = read({"name": LINE})
_RATES = read({"tflops": AMOUNT, "intensity": AMOUNT, "share": SOME, "limit": LINE})
_ROW = read(
    {"kind": LINE, "name": LINE, "dtype": DTYPE, "step": STEP, "ms": TIMED, "reason": LINE, "rates": nullable(_RATES)}
)


def _row(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = _ROW(value)
    if found["ms"] and not found["rates"]:
        raise BadValueError("a time without rates")
    return found


_TABLE = read(
    {
        "item": LINE,
        "operation": LINE,
        "is_op": flag,
        "images": COUNT,
        "problems": mapping(LINE),
        "rows": items(_row),
    }
)
_TOTALS = items(
    read(
        {
            "kind": LINE,
            "name": LINE,
            "dtype": DTYPE,
            "step": STEP,
            "ops": mapping(TIMED),
            "sum_ms": TIMED,
            "library_ratio": SOME,
            "previous_ratio": SOME,
        }
    )
)
_WHOLE = items(read({"conv": LINE, "precision": PRECISION, "ms": TIMED}))
_BENCH = read(
    {
        "subject": LINE,
        "date": LINE,
        "device": read({"name": LINE, "driver": NAME, "cuda": NAME, "cupy": LINE}),
        "cpu": read({"name": LINE, "numpy": LINE}),
        "images": COUNT,
        "settings": read({"noise": number(0, 1), "l2": LINE, "rule": LINE}, "noise", "l2"),
        "peaks": read({"tflops": _peaks, "gbytes_per_s": TIME}),
        "tables": items(_table),
        "totals": _TOTALS,
        "batches": items(read({"images": COUNT, "totals": _TOTALS, "whole_program": _WHOLE})),
        "whole_program": _WHOLE,
    }
)
_SPAN = read(
    {"layer": NAME, "name": LINE}
    | dict.fromkeys(("calls", "total_ms", "share", "min_ms", "average_ms", "max_ms"), AMOUNT)
)
_CALL = read({"name": LINE} | dict.fromkeys(("calls", "total_ms", "share", "average_us", "max_us"), AMOUNT))
_COUNTER = read(
    {"layer": LINE, "name": LINE, "bound": LINE, "throughput": mapping(SOME)}
    | dict.fromkeys(("load", "store", "warps", "occupancy"), SOME)
)
_PROFILE = read(
    {
        "network": LINE,
        "precision": LINE,
        "batch": COUNT,
        "device": CARD,
        "settings": mapping(lambda value: flag(value) if isinstance(value, bool) else nullable(SIZE)(value)),
        "rows": items(_SPAN),
        "api": items(_CALL),
        "counters": nullable(_counters),
        "counters_note": NAME,
    }
)
_COMPILED = read(
    {"operation": LINE, "name": LINE, "layer": LINE, "entry": LINE, "occupancy": AMOUNT}
    | dict.fromkeys(("threads", "registers", "static_shared", "dynamic_shared", "constant", "blocks"), SIZE)
    | dict.fromkeys(("spill_stores", "spill_loads"), SIZE)
)


def _resource(value: Any) -> Any:
    return (_COMPILED if isinstance(value, dict) and "registers" in value else read({}))(value)


_MEDIAN = nullable(read({"p50": TIMED}))
_PEERS = read(
    {
        "command": LINE,
        "date": LINE,
        "device": CARD,
        "software": mapping(NAME),
        "images": COUNT,
        "rows": items(
            read(
                {
                    "engine": LINE,
                    "precision": PRECISION,
                    "on_card_ms": _MEDIAN,
                    "end_to_end_ms": _MEDIAN,
                    "reason": LINE,
                }
            )
        ),
    },
    "command",
)
_HIDDEN = {"network": LINE, "hidden": nullable(COUNT), "batch": COUNT}
_TRAINING = read(
    {
        "rows": items(
            read(
                {**_HIDDEN, "seconds_per_epoch": TIME, "images_per_second": AMOUNT}
                | {"numpy_seconds_per_epoch": TIME, "device": LINE, "cpu": LINE}
            )
        ),
        "shares": items(read({**_HIDDEN, "kernel": LINE, "share": AMOUNT})),
    }
)
_VERSION = read(
    {
        "version": LINE,
        "images": COUNT,
        "unit": one_of("ms", "s"),
        "ops": row(TIME, TIME),
        "sum": TIME,
        "variant": NAME,
        "dtype": DTYPE,
        "at_most": flag,
    },
    *("ops", "sum", "dtype", "at_most"),
)
_SYSTEM = read(
    {
        "card": LINE,
        "year": COUNT,
        "whole_program": flag,
        "gains": mapping(TIME),
        "versions": items(_version, least=1),
    },
    "gains",
)
_OLD = read(
    {
        "accuracy": mapping(_counts),
        "training": read(
            {
                "year": COUNT,
                "seconds": items(read({"configuration": LINE, "cpu": TIME, "gpu": TIME})),
                "shares": mapping(AMOUNT),
            }
        ),
        "systems": read(dict.fromkeys(("lenet5", "fa19", "k7", "minidnn86"), _SYSTEM)),
    }
)

# By the documents' names of their schemas.
CHECKS: dict[str, Check] = {
    SCHEMA: _bench,
    "lenet5-inference/profile/1": _PROFILE,
    "lenet5-inference/kernels/1": read({"arch": LINE, "resources": items(_resource)}),
    "lenet5-inference/peers/1": _PEERS,
    "lenet5-inference/training/1": _TRAINING,
    "lenet5-inference/old-reports/1": _OLD,
}
