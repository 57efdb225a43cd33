"""The JSON files of one folder of figures, each read once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.bench.stored_figures import BENCH, NETWORKS, OLD_REPORTS, Bench, MissingError, OldReport, load, old_reports


class Figures:
    """File → document. Raises MissingError for one that has not been made yet, UserError for a broken one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded: dict[str, dict[str, Any]] = {}

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name not in self._loaded:
            self._loaded[name] = load(self._folder, name)
        return self._loaded[name]

    def optional(self, name: str) -> dict[str, Any] | None:
        """None for one that has not been made yet."""
        try:
            return self[name]
        except MissingError:
            return None

    def bench(self, network: str) -> Bench:
        """One network's measurements."""
        return Bench(network, self[BENCH[network]])

    @property
    def benches(self) -> Mapping[str, Bench]:
        """Those of all networks."""
        return {network: self.bench(network) for network in NETWORKS}

    @property
    def old(self) -> dict[str, OldReport]:
        """System → what its report gives of kernels."""
        return old_reports(self[OLD_REPORTS])
