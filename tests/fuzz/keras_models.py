"""Keras' models: damaged outside, with other configurations, or with damaged members."""

import json
from pathlib import Path
from random import Random

import numpy as np

from tests.fuzz.harness import Pair, Target
from tests.fuzz.interchange import imports
from tests.fuzz.mutate import damaged, other_json
from tests.interchange.test_keras import FLATTEN, SHIFTED, conv, dense, norm, plain
from tests.support.keras_files import (
    Model,
    configuration,
    functional,
    keras_hdf5,
    keras_members,
    keras_zip,
    zipped,
)

MODEL: Model = [
    *(SHIFTED, conv(3, 1, 2, False, padding="same"), norm(2)),
    ("PReLU", {"shared_axes": [1, 2]}, {"alpha": np.full((1, 1, 2), 0.25, np.float32)}),
    plain("Normalization", axis=[-1], mean=[0.5, 0.4], variance=[0.1, 0.2]),
    *(plain("ZeroPadding2D", padding=[[0, 1], [0, 1]]), plain("AveragePooling2D", pool_size=[2, 2], strides=[1, 1])),
    *(plain("LeakyReLU", negative_slope=0.1), plain("MaxPooling2D", pool_size=[3, 3], strides=[2, 2], padding="same")),
    *(FLATTEN, dense(18, 3, activation="softmax")),
]


def make_keras(folder: Path) -> Pair:
    """Damaged archives and HDF5 files, and whole ones with another configuration, or with damaged members."""
    configs = [form(MODEL, (6, 6, 1)) for form in (configuration, functional)]
    goods = [write(MODEL, config) for write in (keras_zip, keras_hdf5) for config in configs]

    def generate(rng: Random) -> bytes:
        if rng.random() < 0.3:
            return damaged(rng, rng.choice(goods))
        other = other_json(rng, rng.choice(configs))
        if rng.random() < 0.3:
            return keras_hdf5(MODEL, other[: 60 << 10].decode("utf-8", "replace").replace("\0", ""))
        members = keras_members(MODEL, {}) | {"config.json": other if rng.random() < 0.7 else json.dumps(configs[0])}
        chosen = rng.choice(list(members))
        content = members[chosen]
        if rng.random() < 0.3:
            members[chosen] = damaged(rng, content.encode() if isinstance(content, str) else content)
        return zipped(members)

    return generate, lambda path: imports(path, None)


TARGETS = (Target("keras", 700, make_keras),)
