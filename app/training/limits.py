"""Which values a training's settings may have, whether they were typed or come from a checkpoint. No NumPy here."""

from __future__ import annotations

MAX_COUNT = 10**12
# Setting → its least and its most.
WHOLE = {
    "epochs": (1, 10_000),
    "batch": (1, MAX_COUNT),
    "images": (2, MAX_COUNT),
    "validation": (1, MAX_COUNT),
    "workers": (1, MAX_COUNT),
    "seed": (0, 2**63 - 1),
    "shift": (0, 8),
}
# Setting → its least, its most, and whether it must be above the least.
NUMBERS = {
    "rate": (0.0, 1e3, True),
    "weight_decay": (0.0, 1e3, False),
    "l2": (0.0, 1e3, False),
    "smoothing": (0.0, 1.0, False),
}
WORDS = {"optimiser": ("adamw", "sgd"), "storage": ("float32", "float16")}
