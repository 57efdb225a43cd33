"""Fixtures: a folder with invented figures, from which tests know the generated documents in advance."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.lab.bench.cases import item_variants, network_items
from app.lab.bench.results import CPU, DEBUG, LIBRARY, OURS, Result, Table
from app.network.graph import network_graph
from app.records.parts import Peaks
from docs.generate.figures import BENCH, COSTS, CYCLE, FIGURES, PROFILE, RESOURCES, Figures
from tests.support.peers_for_tests import bench_document
from tests.support.schemas import mistakes


def invented_bench(network: str) -> dict[str, Any]:
    """Return an invented bench document: step n takes 40 - n ms, half as much in float16; debug 100, CPU 1000 ms.

    Kernels that ``auto`` never chooses take 39 ms. Those that use wgmma have no time on layers with inputs of bytes.
    """
    tables = []
    for item in network_items(network_graph(network)):
        rows = [Result(CPU, "CPU, NumPy", next(iter(item.problems)), ms=1000.0)]
        for problem, row in item_variants(item, None):
            kind, dtype = LIBRARY if row.needs_cublas else OURS, problem.dtype
            rung = row.step if row.automatic or row.needs_cublas else 1
            ms = (40 - rung) / (2 if dtype == "float16" else 1)
            if item.is_single_convolution and row.instructions == "wgmma" and problem.arguments()[0].dtype == "uint8":
                rows.append(Result(kind, row.name, dtype, row.step, reason="reads float16"))
                continue
            rows.append(Result(kind, row.name, dtype, row.step, ms=ms))
            if row.name == "direct" and item.is_single_convolution and dtype == "float32":
                rows.append(Result(DEBUG, "direct, device debug", dtype, row.step, ms=100.0))
        if item.is_single_convolution:
            rows.append(Result(LIBRARY, "cuDNN, TF32 off", "float32", ms=30.0))
            rows.append(Result(OURS, "lost", "float32", 99, reason="does not fit"))
        tables.append(Table(item.name, item.operation, item.is_single_convolution, 10_000, item.problems, tuple(rows)))
    timed = [("fp32", "direct", 20.0), ("fp32", "shared-tile", 10.0), ("fp32", "auto", 10.4), ("fp16", "auto", None)]
    programs = [
        {"precision": precision, "conv": conv, "ms": ms, "spread_ms": None, "runs": 3, "reason": ""}
        for precision, conv, ms in timed
    ]
    peaks: Peaks = {"tflops": {"float32": 65.0, "tfloat32": 330.0, "float16": 660.0}, "gbytes_per_s": 3000.0}
    return bench_document(network, tables, peaks, programs, (100, 1000, 5000, 10_000))


def write_document(document: dict[str, Any], path: Path) -> None:
    """Write the document as JSON; check that it fits its schema."""
    path.write_text(json.dumps(document))
    assert not mistakes(json.loads(path.read_text()))


@pytest.fixture(scope="session")
def figures_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a complete folder of figures: invented benches, a profile without one counter, and stored files."""
    made = tmp_path_factory.mktemp("figures")
    for network, name in BENCH.items():
        write_document(invented_bench(network), made / name)
    profiled = Figures()[PROFILE]
    profiled["counters"][0]["store"] = None
    write_document(profiled | {"counters_note": "no more counters"}, made / PROFILE)
    for name in (RESOURCES, COSTS, CYCLE):
        (made / name).write_bytes((FIGURES / name).read_bytes())
    return made


@pytest.fixture(scope="session")
def figures(figures_folder: Path) -> Figures:
    """Return the figures in ``figures_folder``."""
    return Figures(figures_folder)


@pytest.fixture
def no_figures(tmp_path: Path) -> Figures:
    """Return the figures of an empty folder."""
    return Figures(tmp_path)
