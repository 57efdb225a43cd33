"""Picture files of every kind, damaged: Pillow and the libraries under it meet what no camera writes."""

from pathlib import Path

from app.images.pictures.preparing import prepare
from app.images.pictures.reading import read_picture
from tests.fuzz.harness import Pair, Target
from tests.fuzz.mutate import damaged

SHAPE = (1, 28, 28)


def make(_: Path) -> Pair:
    """What predict does with each file."""
    from tests.support.pictures import BOMBS, KINDS

    goods = [*(make() for make, _, _ in KINDS.values()), *BOMBS.values()]

    def read(path: Path) -> None:
        image = read_picture(path)
        assert image.mode in ("L", "RGB") and image.info["frames"] >= 1
        assert prepare(image, SHAPE).pixels.shape == SHAPE

    return lambda rng: damaged(rng, rng.choice(goods)), read


TARGETS = (Target("picture", 150, make),)
