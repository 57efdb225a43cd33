"""Test on a GPU that logits have the same bits below, at and above each batch size at which the kernel changes."""

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

from app.cuda.device import describe_gpu
from app.cuda.memory import pinned_copy
from app.engine.gpu import GpuEngine
from app.kernels.fused import any_pair
from app.kernels.gemm.warpgroup import FEW_IMAGES
from app.network.definitions import NETWORKS
from app.planning.matching import Choices
from app.planning.plan import plan
from tests.support.networks_for_tests import ODD, random_graph, random_images

pytestmark = pytest.mark.gpu
ALL = {**NETWORKS, ODD.name: ODD}


# Networks and precisions whose kernels add long sums in slices.
SLICED = [(name, precision) for name in ("fa19", "k7") for precision in ("fp16", "fp32x")]


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, precision) for name in ALL for precision in ("fp32", "tf32")), *SLICED]
)
def test_logits_keep_their_bits_where_the_kernel_changes(name: str, precision: str) -> None:
    """Engines for few images bind one kernel per layer; an engine for many binds both, and switches between them."""
    graph = random_graph(ALL[name])
    execution = plan(graph, describe_gpu()["architecture"], Choices(precision))
    switches = sorted({few.most for node in execution.nodes for few in node.few})
    switches += [any_pair.FEW_IMAGES, FEW_IMAGES] if (name, precision) in SLICED else []
    if execution.nodes[0].variant.name == "wgmma-any":  # mlp in tf32 on Hopper
        switches += [8, 80]
    assert switches
    counts = sorted({1, *(most + more for most in switches for more in (0, 1))})
    images = pinned_copy(random_images(ALL[name], counts[-1]))

    def logits_of(engine: GpuEngine, count: int) -> np.ndarray:
        outputs = engine.allocate_outputs(count, logits=True)
        assert outputs.logits is not None
        outputs.logits.fill(np.nan)
        engine.run(images[:count], outputs)
        np.testing.assert_array_equal(outputs.labels, outputs.logits.argmax(axis=1))
        return np.array(outputs.logits).view(np.uint32)

    with GpuEngine(execution, chunk=counts[-1], streams=1, always_in_chunks=True) as whole:
        wanted = logits_of(whole, counts[-1])
        for count in counts[:-1]:
            np.testing.assert_array_equal(logits_of(whole, count), wanted[:count], err_msg=f"{count} of many")
            with GpuEngine(execution, chunk=count, streams=1) as small:
                np.testing.assert_array_equal(logits_of(small, count), wanted[:count], err_msg=f"{count} alone")
