"""Test docs/scale.md (its commands, job script and tables), the measured costs, and the tables of peers."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.classifier import Classifier
from app.network.weights import save_weights
from docs.generate import scale, systems
from docs.generate.__main__ import BENCHMARKS, SYSTEMS
from docs.generate.figures import COMPARED, COSTS, FIGURES, PEERS, Figures
from docs.measure import classify_costs
from tests.docs.conftest import write_document
from tests.docs.test_docs import table_rows
from tests.lab.test_peers import DOCUMENT, KNOWN, ROWS, comparison, row_of
from tests.support.networks_for_tests import FLAT, random_graph, random_images
from tests.support.schemas import mistakes

ROOT = Path(__file__).parents[2]
# Replaces Slurm's srun: it starts one process on this machine.
SRUN = """#!/bin/bash
shift
trap 'kill $!; wait' TERM
"$@" &
wait
"""
HOSTNAME = "#!/bin/bash\necho 127.0.0.1\n"


def test_every_dask_command_has_a_host_option() -> None:
    """Check ``--host`` in every command, because Dask otherwise listens on every address of the machine."""
    text = (ROOT / "docs/scale.md").read_text(encoding="utf-8").replace("\\\n", "")
    commands = re.findall(r"^.*\bdask (?:scheduler|worker) .*--.*$", text, re.MULTILINE)
    assert len(commands) == 6 and all(" --host " in command for command in commands)


def test_the_slurm_script_classifies_and_ends_its_processes(tmp_path: Path) -> None:
    text = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"<!-- slurm:begin -->\n```sh\n(.*?)```", text, re.DOTALL)
    commands = {"srun": SRUN, "hostname": HOSTNAME, "job": script}
    (tmp_path / "bin").mkdir()
    for name, content in commands.items():
        (tmp_path / "bin" / name).write_text(content)
        (tmp_path / "bin" / name).chmod(0o700)
    (tmp_path / "lenet5-inference").symlink_to(ROOT)
    images = random_images(FLAT, 100)
    np.save(tmp_path / "images.npy", images)
    save_weights(tmp_path / "own.h5", random_graph(FLAT).parameters, network=FLAT)
    own = {"HOME": str(tmp_path), "SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "TMPDIR": str(tmp_path)}
    # The interpreter's folder comes first, because a test machine may lack the folders that the script names.
    path = f"{tmp_path}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["job", "images.npy", "--weights", "own.h5", "--device", "cpu", "--out", "out"],
        cwd=tmp_path,
        env=os.environ | own | {"PATH": path},
        capture_output=True,  # returns only when the last process has closed its output
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    with Classifier(tmp_path / "own.h5", device="cpu") as classifier:
        np.testing.assert_array_equal(np.load(tmp_path / "out/images.labels.npy"), classifier(images))
    assert not (tmp_path / "cluster-7.json").exists()


CPU = {"kind": "cpu", "name": "some processor", "threads": 2, "numpy": "2.0"}
RUN = {"arithmetic": "fp16", "devices": ["a card"], "images": 10, "gbytes_per_s": 47.0, "limit": "bus"}
FOUND: dict[str, Any] = {
    "schema": "lenet5-inference/scale/1",
    "date": "today",
    "cpu": CPU,
    "runs": [{**RUN, "what": what, "images_per_s": rate} for what, rate in (("one", 5e7), ("one", 6e7), ("two", 4e7))],
    "goals": [
        {"what": "faster", "asked": 0.9, "measured": 0.8, "unit": ""},
        {"what": "smaller", "asked": 1024, "measured": 50.5, "unit": "MiB"},
    ],
}


def test_scale_tables_without_figures(figures: Figures) -> None:
    """Check that tables name the commands to run, and that estimates use the rate of a stream from memory."""
    shown = scale.throughput_table(figures)
    assert all(f"docs/benchmarks/{name}`." in shown for name in (scale.CARD, *scale.OTHERS))
    assert scale.goals_table(figures) == "Not measured yet."
    assert "One H100 classifies 63,865,346 images/s: streamed from memory" in scale.job_times_table(figures)


def test_scale_tables_with_figures(figures_folder: Path) -> None:
    assert not mistakes(FOUND)
    figures = Figures(figures_folder)
    figures[scale.CARD] = FOUND
    shown = scale.throughput_table(figures)
    assert "60,000,000" in shown and "50,000,000" not in shown and "40,000,000" in shown
    shown = scale.goals_table(figures)
    assert re.search(r"faster +\| +at least 0\.9 \| +\*\*0\.8\*\*", shown)
    assert re.search(r"smaller \| at most 1,024 MiB \| +50\.5 MiB", shown)
    figures[COSTS] = {
        **figures[COSTS],
        "store_s": 10 * 2**20 / 1e9,
        "hash_gbytes_per_s": 2.0,
        "cluster": [{"workers": 2, "labels": 2**20, "pieces": 9, "pieces_per_s": 3e7 / 2**20}],
    }
    shown = scale.job_times_table(figures)
    assert "One H100 classifies 60,000,000 images/s: the fastest run above (fp16)." in shown
    for part in (
        r"pixels +\| +784 GB +\| +784 TB",
        r"shards of 10,000,000 images +\| +100 \| +100,000",
        r"pieces +\| +1,000 \| +1,000,000",
        r"64 H100s at that rate +\| +260 ms \| +4\.34 min",
        r"one port of 100 Gb/s +\| +1\.05 min \| +17\.4 h",
        r"one scheduler +\| +33\.3 s \| +9\.26 h",
        r"on the client +\| +1 s \| +16\.7 min",
        r"checking all labels .* 500 ms \| +8\.33 min",
    ):
        assert re.search(part, shown), part
    rows = scale.throughput_limits_table(figures).splitlines()[2:]
    assert [re.split(r" *\| *", row)[3] for row in rows] == ["0.27", "0.50", "1.06", "16.67"]


def test_measure_costs_and_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SECONDS": 0.1, "ROUNDS": 2, "HASHED_BYTES": 1000, "WORKERS": 1, "LABELS": (7,)}.items():
        monkeypatch.setattr(classify_costs, name, value)
    document = classify_costs.measure_costs()
    assert not mistakes(document)
    (row,) = document["cluster"]
    assert (row["workers"], row["labels"]) == (1, 7) and row["pieces"] > 0
    text = classify_costs.as_text(document, 80)
    assert "open IDX, gzip" in text and all(len(line) <= 80 for line in text.splitlines())


def test_help_of_costs_names_what_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["classify_costs", "--help"])
    with pytest.raises(SystemExit):
        classify_costs.main()
    assert "also write all costs to FILE" in capsys.readouterr().out


# --- Tables that compare our times with those of other systems


LATER = DOCUMENT | {"date": "2026-02-02 00:00 UTC"}


def test_our_times_are_compared_with_the_fastest_peer(no_figures: Figures, tmp_path: Path, release: Path) -> None:
    """Check bold losses, and rows without a ratio because not all settings of the peers were measured."""
    write_document(DOCUMENT | {"notes": ["None: python main.py"]}, tmp_path / PEERS["mlp"])
    made = SYSTEMS.render_block("mlp", no_figures)
    assert "10,000 images, Some Card, 2026-01-01 00:00 UTC, torch 2.99, jax 0.9" in made
    first, second, best = "JAX jit", "PyTorch eager, contiguous", "torch.compile max-autotune, channels last"
    assert ("fp32x", "0.5000", "2.0000", "4.00", first, "1.0000", "3.5000", "3.50", second) in table_rows(made)
    halves = ("0.1000", "0.0900", "**0.90**", best, "0.2000", "2.4000", "12.0", best)
    assert ("fp16", *halves) in table_rows(made)
    unknown = ("tf32", "1.0000", "", "", KNOWN["tf32"], "1.0000", "", "", "")
    assert unknown in table_rows(made) and ("int8", "not served", *[""] * 7) in table_rows(made)
    assert "None: `python main.py`." in made
    block = BENCHMARKS.render_block("peers", no_figures)
    table = table_rows(block)
    assert {("`mlp`, 10,000 images, Some", "fp16", *halves), ("`mlp`, 10,000 images, Some", *unknown)} <= table
    assert not [row for row in table if "int8" in row]
    assert "- `mlp`, 10,000 images, Some, fp16: not known; ours ran " in block and block.count("fp16: ") == 1
    assert len(COMPARED) >= 9
    for network in COMPARED:
        asked = f"- `{network}`: Not measured yet: run `python main.py bench --peers --network {COMPARED[network]} "
        assert (asked in block) == (network != "mlp")
    goals = table_rows(SYSTEMS.render_block("goals", no_figures))
    for row in (
        "`mlp`|Some|fp16|on the card|0.1000|≤ 0.02|0.012|**no**|0.90|≥ 3|**no**",
        "`mlp`|Some|fp32x|end to end|1.0000|≤ 0.185|0.165|**no**|3.50|≥ 1.1|yes",
    ):
        assert tuple(row.split("|")) in goals


def test_the_latest_of_several_runs_is_shown(no_figures: Figures, tmp_path: Path, release: Path) -> None:
    """Store an older and a newer run in two files, of which one has several networks."""
    write_document(DOCUMENT, tmp_path / PEERS["mlp"])
    newer = [row_of("ours", "", "fp16", 0.05, 0.1), *ROWS[1:3], ROWS[4]]
    several = [comparison(newer), comparison(ROWS, "lenet5", 1), comparison(ROWS, "another")]
    write_document(LATER | {"comparisons": several}, tmp_path / "h100_peers_a.json")
    table = table_rows(BENCHMARKS.render_block("peers", no_figures))
    times = {(row[0].removesuffix(", Some"), row[1]): row[2] for row in table}
    assert times["`mlp`, 10,000 images", "fp16"] == "0.0500" and times["`mlp`, 10,000 images", "fp32x"] == "0.5000"
    assert times["`lenet5`, one image", "fp16"] == times["`another`, 10,000 images", "fp16"] == "0.1000"
    assert "2026-01-01 00:00 UTC, 2026-02-02 00:00 UTC" in SYSTEMS.render_block("mlp", no_figures)
    commands = SYSTEMS.render_block("commands", no_figures)
    assert commands.count("h100_peers_a.json") == commands.count(PEERS["mlp"]) == 1
    assert commands.count("bench --peers --network") == len(COMPARED) - 2


def test_peers_without_times_or_with_wrong_labels_are_named(no_figures: Figures, tmp_path: Path, release: Path) -> None:
    broken: Any = row_of("torch", "default, contiguous", "fp16", None, reason="out of memory")
    wrong: Any = row_of("torch", "default, channels last", "fp16", 1, 1, changed=101)
    rounded: Any = row_of("torch", "reduce-overhead, contiguous", "fp16", 1, 1, changed=100)
    write_document(DOCUMENT | {"comparisons": [comparison([*ROWS, broken, wrong, rounded])]}, tmp_path / PEERS["mlp"])
    made = " ".join(SYSTEMS.render_block("mlp", no_figures).split())
    says = "torch.compile in fp16 (default, channels last) gave other labels than the float64 reference for 101 of"
    assert made.count(says) == made.count("gave other labels") == 1
    assert made.count("torch.compile in fp16 (default, contiguous) has no times: out of memory.") == 1


def test_reasons_for_losses_match_the_stored_losses() -> None:
    """Check that ``WHY_SLOWER`` has a reason for each stored comparison in which a peer is faster, and no others."""
    found = Figures(FIGURES).comparisons
    slower = {
        key[:3]
        for key, (_, one) in found.items()
        for measure in systems.MEASURES
        if systems.pair_with_fastest_peer(one, key[2], measure).peer_is_faster
    }
    assert slower == {*systems.WHY_SLOWER}
