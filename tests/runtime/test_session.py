"""Test how a session recognises the arrays of its last run, without a card."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

from app.runtime.session import Session
from app.runtime.stream_buffers import Outputs


def test_only_the_same_images_and_outputs_are_those_of_the_last_run() -> None:
    """Others are looked at anew, and what was not replayed is not remembered."""
    images, other = np.zeros(3), np.zeros(3)
    outputs, others = (Outputs(np.zeros(3, np.uint8)) for _ in range(2))
    captured: list[tuple[Any, Any]] = [(images, outputs)]
    looked: list[tuple[Any, Any]] = []

    class Known(Session):
        def __init__(self) -> None:
            self._last = None, None

        def replays(self, images: np.ndarray, outputs: Outputs) -> bool:
            looked.append((images, outputs))
            return any(images is known[0] and outputs is known[1] for known in captured)

    session = Known()
    assert session._again(images, outputs)
    assert session._again(images, outputs)
    assert len(looked) == 1
    for given in ((images, others), (other, outputs), (other, others)):
        assert not session._again(*given)
        assert not session._again(*given)
    assert session._again(images, outputs)
    assert len(looked) == 8
