"""Copy lenet5's weights to a new file, with the rows of fc1 in a wrong order (C, H, W): ``spoil.py FILE``."""

import sys
from pathlib import Path

import h5py

GOOD = Path(__file__).parents[2] / "weights" / "lenet5_fashion.h5"

with h5py.File(GOOD) as good, h5py.File(sys.argv[1], "x") as spoiled:
    for name in ("conv1", "conv2", "fc1", "fc2"):
        spoiled[name] = good[name][:]
    spoiled["fc1"][:] = good["fc1"][:].reshape(16, 64, 128).transpose(1, 0, 2).reshape(1024, 128)
