"""Where kernels start before those ahead of them have ended."""

from typing import Any

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

from app.cuda import launch_attributes
from app.cuda.device import describe_gpu
from app.cuda.memory import pinned_copy
from app.engine.buffers import DIRECT
from app.engine.chunks import pieces
from app.engine.gpu import GpuEngine
from app.network.definitions import LENET5
from app.network.graph import build
from app.network.weights import load_weights
from app.planning.matching import Choices
from app.planning.plan import plan
from tests.support.networks_for_tests import random_images

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("streams", [1, 3])
def test_kernels_start_early_where_no_other_stream_needs_the_room(
    streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that wait for the kernel ahead would keep other streams' blocks out; a graph of kernels alone has none."""
    if describe_gpu()["architecture"] != "sm_90a" or not launch_attributes.serves_dependent():
        pytest.skip("dependent launches need sm_90 and a driver of CUDA 12.3")
    early: list[bool] = []
    launched = launch_attributes.launch_kernel_ex

    def noted(config: Any, *others: Any) -> None:
        asked = config._obj.attributes[: config._obj.attribute_count]
        early.append(launch_attributes.PROGRAMMATIC in {attribute.number for attribute in asked})
        launched(config, *others)

    monkeypatch.setattr(launch_attributes, "launch_kernel_ex", noted)
    images = pinned_copy(random_images(LENET5, 32))
    in_chunks = [streams == 1] * len(list(pieces(32, 8)))
    execution = plan(build(LENET5, load_weights()), "sm_90a", Choices("fp16"))
    with GpuEngine(execution, chunk=8, streams=streams) as running:
        outputs = running.outputs(len(images))
        running.run(images, outputs)
        assert early == in_chunks
        running.run(images, outputs)  # the second run of the same arrays captures a graph
        assert running.direct is not None and running.direct.how == DIRECT
        assert early == [*in_chunks, *in_chunks, True]
