"""Measure how many labels photos keep on each kind of background: ``python -m tests.images.measure_photos``.

The photos show Fashion-MNIST's test images (tests/support/pictures.py). The output is a table of docs/predict.md.
"""

import argparse
import io
from typing import NamedTuple

import numpy as np
from PIL import Image

from app.base.clock import Timer
from app.engine.classifier import Classifier
from app.images.pictures.preparing import prepare_picture
from app.images.predict.inputs import Part
from app.images.predict.writers import AnswerLayout
from data_tools.fashion_mnist import open_split
from tests.support.pictures import GROUNDS, photo


class PhotoShares(NamedTuple):
    """Shares of photos, and milliseconds to prepare one. kept: with the label of the original image.

    true: with the true label. wrong_noted, kept_noted: with a note, of the photos whose label changed, or was kept.
    """

    kept: float
    true: float
    wrong_noted: float
    kept_noted: float
    milliseconds: float


def measure_photos(
    images: np.ndarray, truth: np.ndarray, ground: str, count: int, seed: int, classifier: Classifier
) -> PhotoShares:
    """Return the shares of photos, on one kind of background, of ``count`` images drawn from (N, 28, 28)."""
    rng = np.random.default_rng([seed, list(GROUNDS).index(ground)])
    drawn = rng.choice(len(images), count, replace=False)
    files = [photo(images[index], ground, rng) for index in drawn]
    pictures = [Image.open(io.BytesIO(file)).convert("RGB") for file in files]
    timer = Timer()
    found = [prepare_picture(picture, (1, 28, 28)) for picture in pictures]
    milliseconds = timer.seconds * 1e3 / count
    wanted = classifier(images[drawn][:, None])
    part = Part([""] * count, [0] * count, np.stack([one.pixels for one in found]), True, [one.doubts for one in found])
    labels = classifier(part.images)
    layout = AnswerLayout(None, 1, False, False, False, True, 0)
    columns = layout.make_columns(part, labels, classifier.logits, classifier.probabilities)
    noted, kept = np.array([*map(bool, columns["note"])]), labels == wanted
    wrong_noted = float(noted[~kept].mean()) if not kept.all() else 1.0
    true = float((labels == truth[drawn]).mean())
    return PhotoShares(float(kept.mean()), true, wrong_noted, float(noted[kept].mean()), milliseconds)


def main() -> None:
    """Print a table row for each kind of background."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="photos of each ground")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    images, truth, *_ = open_split("test")
    print("| ground | labels kept | true labels | noted, of the wrong | noted, of the others | ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    with Classifier(device="cpu") as classifier:
        for ground in GROUNDS:
            kept = measure_photos(images, truth, ground, options.count, options.seed, classifier)
            print(
                f"| {ground} | {' | '.join(f'{share:.1%}' for share in kept[:-1])} | {kept.milliseconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
