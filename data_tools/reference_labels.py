"""Write what a weights file promises: correct answers and, beside it, float64 reference labels and margins.

    python -m data_tools.reference_labels

computes the reference of the bundled weights anew, on the CPU, and refreshes weights/SHA256SUMS.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

from app.accuracy import top_two_margins
from app.console import Parser, guarded
from app.graph import build, find_network
from app.paths import replacing
from app.weights import CHECKSUMS, Weights, checksums, load_weights, reference_path, save_reference, save_weights
from data_tools.fashion_mnist import CLASSES, load_split

PROMISED_IMAGES = (100, 1_000, 10_000)
CHUNK = 500


def reference_results(weights: Weights, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels (N,) uint8 and margins (N,) float64 of the NumPy network in float64, for (N, H, W) uint8 images.

    The margin is the best logit minus the second best: how far a label is from flipping.
    """
    graph = build(find_network(weights.network), weights)
    starts = tqdm(range(0, len(images), CHUNK), desc="reference", unit="chunk", disable=not sys.stderr.isatty())
    logits = np.concatenate([graph.reference(images[i : i + CHUNK, None], dtype=np.float64) for i in starts])
    return logits.argmax(axis=1).astype(np.uint8), top_two_margins(logits)


def write_release(arrays: dict[str, np.ndarray], recipe: str, output: Path) -> None:
    """Write trained ``lenet5`` weights to ``output`` and, beside them, their reference results and SHA256SUMS.

    arrays: as in ``Weights``. Everything is computed before anything is written, and each file is replaced
    atomically. Raises UserError.
    """
    images, truth = load_split("test")
    weights = Weights(arrays, "lenet5", CLASSES, 1 / 255, recipe, expected_correct={}, sha256="", path=output)
    labels, margins = reference_results(weights, images)
    save_weights(
        output,
        arrays,
        network=weights.network,
        classes=weights.classes,
        input_scale=weights.input_scale,
        recipe=recipe,
        expected_correct={n: int((labels[:n] == truth[:n]).sum()) for n in PROMISED_IMAGES},
    )
    _write_reference(output, labels, margins)


def _write_reference(weights_path: Path, labels: np.ndarray, margins: np.ndarray) -> None:
    digest = hashlib.sha256(weights_path.read_bytes()).hexdigest()
    reference = reference_path(weights_path)
    save_reference(reference, labels, margins, digest)
    record_checksums(weights_path, reference)


def record_checksums(*paths: Path) -> None:
    """Put the SHA-256 of these files, all of one directory, into its SHA256SUMS; other lines stay."""
    directory = paths[0].parent
    sums = checksums(directory) | {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    with replacing(directory / CHECKSUMS) as temporary:
        temporary.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))


def main() -> int:
    """Returns the exit code."""
    return guarded(_run)


def _run() -> int:
    Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    weights = load_weights()
    labels, margins = reference_results(weights, load_split("test")[0])
    _write_reference(weights.path, labels, margins)
    print(f"wrote {reference_path(weights.path)} and {weights.path.with_name(CHECKSUMS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
