"""Compiled kernels in the cache: whatever is not exactly what was put there is none."""

import os
from pathlib import Path

from app.cuda import compiler
from tests.fuzz.harness import Pair, Target
from tests.fuzz.mutate import damaged

CUBIN = b"\x7fELF" + bytes(range(256)) * 2


def make(folder: Path) -> Pair:
    """The reader answers with the machine code or None, which counts as refused."""
    good = folder / "good.cubin"
    compiler._write_cached(good, CUBIN)
    content = good.read_bytes()

    def read(path: Path) -> bool:
        os.chmod(path, 0o600)  # noqa: PTH101 - as the cache has it
        assert compiler._read_cached(good) == CUBIN
        found = compiler._read_cached(path)
        assert found is None or (path.read_bytes() == content and found == CUBIN)
        return found is not None

    return lambda rng: damaged(rng, content), read


TARGETS = (Target("kernels", 1500, make),)
