"""Test that ``bench --peers`` overwrites the results of this program's previous run on the card."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest

from app.lab.batch import UNWRITTEN
from app.planning.matching import Choices
from app.planning.tuning import Tuning
from tests.support.peers_for_tests import small_batch

pytest.importorskip("cupy", reason="CuPy is not installed")

from app.engine.buffers import StreamBuffers, WholeBatchBuffers
from app.engine.gpu import GpuEngine
from app.lab.peers.ours import OurEngine


def _make(kind: Any, **attributes: Any) -> Any:
    """Return an object of the class with only these attributes, without a call of its constructor."""
    made = kind.__new__(kind)
    vars(made).update(attributes)
    return made


@pytest.mark.parametrize("in_place", [False, True])
def test_every_array_that_a_run_writes_is_overwritten_before(in_place: bool) -> None:
    """A run writes buffers and workspaces of every stream, or of the whole batch that is read in place."""
    arrays = [Mock(nbytes=16 + index) for index in range(7)]
    launches = [SimpleNamespace(workspace=[array]) for array in arrays[:3]]
    stream_buffers = [
        _make(StreamBuffers, named={"images": arrays[3]}, launches=launches[:1]),
        _make(StreamBuffers, named={"labels": arrays[4]}, launches=launches[1:2]),
    ]
    direct = _make(WholeBatchBuffers, named={"activations0": arrays[5], "logits": arrays[6]}, launches=launches[2:])
    ours = _make(GpuEngine, stream_buffers=stream_buffers, direct=direct if in_place else None)
    _make(OurEngine, _engine=ours).poison_buffers()
    for number, array in enumerate(arrays):
        written = (number in (2, 5, 6)) == in_place
        assert array.data.memset.mock_calls == ([call(UNWRITTEN, array.nbytes)] if written else [])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp16", "fp32x", "fp32"])
def test_labels_come_from_the_last_run(precision: str) -> None:
    import cupy

    from app.cuda.device import describe_gpu
    from app.cuda.memory import pinned_copy
    from app.network.graph import network_graph
    from app.planning.plan import plan

    arch, batch = describe_gpu()["architecture"], small_batch(count=64)
    graph = network_graph("lenet5")
    images, labels = pinned_copy(batch.images), pinned_copy(np.empty(64, np.uint8))
    engine = OurEngine(graph, images, labels, precision, arch, Tuning())
    reads_host = plan(graph, arch, Choices(precision)).nodes[0].variant.reads_host
    found = []
    for _ in range(4):
        engine.poison_buffers()
        labels.fill(UNWRITTEN)
        engine.synchronize()
        direct, streams = engine._engine.direct, engine._engine.stream_buffers
        written = [array for buffers in streams for array in buffers.arrays] if direct is None else direct.arrays
        assert all((cupy.asnumpy(array.view("uint8")) == UNWRITTEN).all() for array in written)
        engine.run()
        found.append(labels.copy())
    assert (engine._engine.direct is not None) == reads_host
    assert all(np.array_equal(each, found[0]) for each in found) and max(found[0]) < 10
    engine.upload_images()
    engine.enqueue()
    engine.synchronize()
    assert np.array_equal(engine.download_labels(), found[0])
    engine.close()
