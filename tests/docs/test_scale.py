"""docs/scale.md: its job script with processes in place of machines, its tables, and how its costs are measured."""

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
from docs.generate import scale
from docs.generate.figures import COSTS, Figures
from docs.measure import classify_costs
from tests.support.networks_for_tests import FLAT, random_graph, random_images
from tests.support.schemas import mistakes

ROOT = Path(__file__).parents[2]
# In place of Slurm's: a process of this machine.
SRUN = """#!/bin/bash
shift
trap 'kill $!; wait' TERM
"$@" &
wait
"""
HOSTNAME = "#!/bin/bash\necho 127.0.0.1\n"


def test_every_command_says_where_it_listens() -> None:
    """Dask's own default is every address of the machine."""
    text = (ROOT / "docs/scale.md").read_text(encoding="utf-8").replace("\\\n", "")
    commands = re.findall(r"^.*\bdask (?:scheduler|worker) .*--.*$", text, re.MULTILINE)
    assert len(commands) == 6 and all(" --host " in command for command in commands)


def test_the_job_script(tmp_path: Path) -> None:
    """It classifies, and leaves no process behind."""
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
    # The interpreter's folder comes before those that the script names, which a test machine may lack.
    path = f"{tmp_path}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["job", "images.npy", "--weights", "own.h5", "--device", "cpu", "--out", "out"],
        cwd=tmp_path,
        env=os.environ | own | {"PATH": path},
        capture_output=True,  # until the last process has closed it
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


def test_tables_without_figures(figures: Figures) -> None:
    """Each says which command is missing; the streamed rate stands in for that from files."""
    shown = scale.throughput_table(figures)
    assert all(f"docs/benchmarks/{name}`." in shown for name in (scale.CARD, *scale.OTHERS))
    assert scale.goals_table(figures) == "Not measured yet."
    assert "One H100: 63,889,473 images/s, streamed from memory" in scale.job_times_table(figures)


def test_tables_of_figures(figures_folder: Path) -> None:
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
    assert "One H100: 60,000,000 images/s, the fastest run above (fp16)." in shown
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


def test_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SECONDS": 0.1, "ROUNDS": 2, "HASHED_BYTES": 1000, "WORKERS": 1, "LABELS": (7,)}.items():
        monkeypatch.setattr(classify_costs, name, value)
    document = classify_costs.measured()
    assert not mistakes(document)
    (row,) = document["cluster"]
    assert (row["workers"], row["labels"]) == (1, 7) and row["pieces"] > 0
    text = classify_costs.as_text(document, 80)
    assert "open IDX, gzip" in text and all(len(line) <= 80 for line in text.splitlines())
