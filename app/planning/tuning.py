"""Choose the best variant and parameters for a problem, from measured tables or, without a table, by a rule.

A table is one JSON file per GPU: problem (``tuning_key``) → variant → parameters and milliseconds. The H100's table is
shipped in app/kernels/tuned/; results of ``bench`` and ``sweep`` go to the user's cache and override it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import cast

from app.base.frozen import Frozen
from app.cuda.compiler import KERNEL_DIR
from app.files.cache import cache_dir, is_trusted, write_private_file
from app.files.checks import document_check, mapping_check, number_check, object_check, whole_number_check
from app.files.reading import may_exist, read_json
from app.kernels import registry
from app.kernels.problems import Problem, operation, tuning_key
from app.kernels.variant import Variant
from app.terminal.console import MAX_BATCH

SCHEMA = "lenet5-inference/tuning/1"
SHIPPED = KERNEL_DIR / "tuned"
REMEDY = "delete it, and sweep again"
REFERENCE_CARDS = {"sm_90a": "NVIDIA H100 80GB HBM3"}  # architecture → the GPU whose table serves without a GPU


class TunedResult(Frozen):
    """The best parameters found for a variant, and its time in ms over ``images`` images."""

    parameters: dict[str, int]
    ms: float
    images: int

    @property
    def ms_per_image(self) -> float:
        """Return the milliseconds per image."""
        return self.ms / self.images


Entries = dict[str, dict[str, TunedResult]]  # problem key → variant name → result


RESULT = object_check(
    {
        "parameters": mapping_check(whole_number_check(1, 2**31 - 1)),
        "ms": number_check(0, 1e12, above=True),
        "images": whole_number_check(1, MAX_BATCH),
    }
)
TABLE = document_check(
    SCHEMA,
    object_check({"entries": mapping_check(mapping_check(lambda value: TunedResult(**RESULT(value))))}, others=True),
)


class Tuning(Frozen):
    """Measured results of one GPU: problem key → variant name → result. Empty if nothing was measured."""

    entries: Mapping[str, Mapping[str, TunedResult]] = field(default_factory=dict)

    def measured_result(self, problem: Problem, row: Variant, arch: str) -> TunedResult | None:
        """Return a variant's measured result; None if it was not measured, or if its parameters are no longer valid."""
        tuned = self.entries.get(tuning_key(problem), {}).get(row.name)
        if tuned is None or not set(tuned.parameters) <= set(row.tunables):
            return None
        return None if row.refusal_reason(problem, arch, tuned.parameters) else tuned

    def parameters(self, problem: Problem, row: Variant, arch: str) -> dict[str, int]:
        """Return a variant's best known parameters; empty (its defaults) if unknown or no longer valid."""
        tuned = self.measured_result(problem, row, arch)
        return tuned.parameters if tuned else {}

    def least_ms_per_image(self, problem: Problem) -> float | None:
        """Return the least measured milliseconds per image of any variant; None if none was measured."""
        measured = self.entries.get(tuning_key(problem), {}).values()
        return min((tuned.ms_per_image for tuned in measured), default=None)

    def choose_kernel(
        self, problem: Problem, arch: str, named: Variant | None = None
    ) -> tuple[Variant, dict[str, int]] | None:
        """Return the variant to use and its parameters; None if the named variant, or every one, refuses the problem.

        Without ``named``, this is the highest step of the ladder that serves the problem and may be chosen
        automatically. A lower step replaces it only if both were measured and the lower one is faster.
        """
        if named is not None:
            parameters = self.parameters(problem, named, arch)
            return None if named.refusal_reason(problem, arch, parameters) else (named, parameters)
        rows = registry.eligible_variants(operation(problem), problem, arch)
        least = self.least_ms_per_image(problem) or 0.0
        best: tuple[Variant, TunedResult] | None = None
        for row in rows:
            tuned = self.measured_result(problem, row, arch)
            if best is None and tuned is None:
                return row, {}
            if tuned is not None and (best is None or tuned.ms_per_image < best[1].ms_per_image):
                best = row, tuned
            if best is not None and best[1].ms_per_image <= least:
                break  # lower steps need not be imported
        return best and (best[0], best[1].parameters)


def load(card: str) -> Tuning:
    """Load the results of a GPU, given by its CUDA name: the shipped table, overridden by the user's.

    A missing table is empty. A table that another user could have written is ignored with a note. Raises UserError for
    a damaged one.
    """
    entries = _read_table(SHIPPED / table_file_name(card))
    own = cache_dir() / "tuning" / table_file_name(card)
    if is_trusted(own):
        _merge_results(entries, _read_table(own))
    return Tuning(entries)


def store(card: str, results: Mapping[Problem, Mapping[str, TunedResult]]) -> Path:
    """Merge results (problem → variant name → result) into the user's table; return its path.

    Raises UserError if the table is damaged, cannot be written, or lies where another user could write it.
    """
    path = cache_dir() / "tuning" / table_file_name(card)
    entries = _read_table(path)
    _merge_results(entries, {tuning_key(problem): variants for problem, variants in results.items()})
    document = {
        "schema": SCHEMA,
        "card": card,
        "entries": {
            problem: {name: vars(tuned) for name, tuned in sorted(variants.items())}
            for problem, variants in sorted(entries.items())
        },
    }
    write_private_file(path, json.dumps(document, indent=1) + "\n")
    return path


def table_file_name(card: str) -> str:
    """Return a table's file name: ``NVIDIA H100 80GB HBM3`` → ``nvidia_h100_80gb_hbm3.json``."""
    return re.sub(r"[^a-z0-9]+", "_", card.lower()).strip("_") + ".json"


def _merge_results(entries: Entries, newer: Mapping[str, Mapping[str, TunedResult]]) -> None:
    """Replace older results by newer ones, except those measured over more images, which are more reliable."""
    for problem, variants in newer.items():
        kept = entries.setdefault(problem, {})
        for name, tuned in variants.items():
            if name not in kept or kept[name].images <= tuned.images:
                kept[name] = tuned


def _read_table(path: Path) -> Entries:
    if not may_exist(path):
        return {}
    return cast(Entries, read_json(path, TABLE, REMEDY)["entries"])
