"""Test launches in clusters, and dependent launches, which start before the previous kernel has ended."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
import cupy
from cupy.cuda import runtime

from app.cuda import launch_attributes
from app.cuda.launch_attributes import CLUSTER_DIMENSION, DEPENDENT_SINCE, PROGRAMMATIC, _Attribute, _Config
from app.kernels import launch
from app.kernels.function import KernelFunction
from app.kernels.launch import load_cubin

ELEMENTS = 1 << 16
SLOW_NS = 200_000
SOURCE = f"""
#include "dependent_launch.cuh"
__device__ __forceinline__ unsigned long long now() {{
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
    return time;
}}
// Lets the next kernel start, then takes its time before it writes.
extern "C" __global__ void ahead(int *values, unsigned long long *ends, int value) {{
    griddepcontrol_launch_dependents();
    for (unsigned long long begun = now(); now() - begun < {SLOW_NS};) {{
    }}
    for (int i = threadIdx.x; i < {ELEMENTS}; i += blockDim.x) values[i] = value;
    if (threadIdx.x == 0) *ends = now();
}}
extern "C" __global__ void behind(int *sum, unsigned long long *starts, const int *values) {{
    if (threadIdx.x == 0) *starts = now();
    griddepcontrol_wait();
    int own = 0;
    for (int i = threadIdx.x; i < {ELEMENTS}; i += blockDim.x) own += __ldcg(values + i);
    atomicAdd(sum, own);
}}
"""


def test_structures_have_the_sizes_that_the_driver_reads() -> None:
    """Sizes and offsets are those of 64-bit systems in the CUDA Driver API's documentation."""
    assert ctypes.sizeof(_Attribute) == 8 + 64
    assert _Attribute.value.offset == 8
    assert ctypes.sizeof(_Config) == 56
    assert (_Config.stream.offset, _Config.attributes.offset, _Config.attribute_count.offset) == (32, 40, 48)


@pytest.mark.parametrize("version", [DEPENDENT_SINCE - 1, DEPENDENT_SINCE])
@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("dependent", [False, True])
def test_launches_pass_geometry_and_attributes(
    version: int, clusters: bool, dependent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver gets block, grid, stream, argument and attributes; without attributes CuPy's launch is used."""
    extended: list[tuple[Any, ...]] = []
    usual: list[tuple[Any, ...]] = []

    def launch_kernel_ex(config: Any, function: Any, values: Any, _: None) -> int:
        own = config._obj
        attributes = [(own.attributes[i].number, *own.attributes[i].value) for i in range(own.attribute_count)]
        value = ctypes.c_int.from_address(values[0]).value
        extended.append((*own.grid, *own.block, own.shared_bytes, own.stream, function.value, attributes, value))
        return 0

    monkeypatch.setattr(launch_attributes, "runtime", SimpleNamespace(driverGetVersion=lambda: version))
    monkeypatch.setattr(launch_attributes, "_load_launch_kernel_ex", lambda: launch_kernel_ex)
    statuses: list[int] = []
    monkeypatch.setattr(launch_attributes, "driver", SimpleNamespace(check_status=statuses.append))
    monkeypatch.setattr(launch, "driver", SimpleNamespace(launchKernel=lambda *call: usual.append(call)))
    module: Any = SimpleNamespace(get_function=lambda _: SimpleNamespace(ptr=7))
    given: dict[str, Any] = {"cluster": lambda images: images - 4} if clusters else {}
    function = KernelFunction(module, "f", threads=96, shared_bytes=1024, dependent=dependent, **given)
    value = ctypes.c_int(41)
    started = function.make_launcher([value], lambda images: (images, 2, 1))
    for stream, images in ((99, 5), (100, 6)):
        value.value += 1
        started(stream, images)
    early = [(PROGRAMMATIC, 1, 0, 0)] if dependent and version >= DEPENDENT_SINCE else []
    together = (
        [(CLUSTER_DIMENSION, 2, 1, 1)] if clusters else []
    )  # in the second launch; the first one's cluster has one block
    with_attributes = [
        (5, 2, 1, 96, 1, 1, 1024, 99, 7, early, 42),
        (6, 2, 1, 96, 1, 1, 1024, 100, 7, [*early, *together], 43),
    ]
    without = [(7, 5, 2, 1, 96, 1, 1, 1024, 99), (7, 6, 2, 1, 96, 1, 1, 1024, 100)]
    assert extended == [launched for launched in with_attributes if launched[9]]
    assert statuses == [0] * len(extended)
    assert [call[:9] for call in usual] == without[: 2 - len(extended)]


@pytest.mark.gpu
@pytest.mark.parametrize("captured", [False, True])
def test_a_dependent_kernel_starts_early_and_sees_all_results(tmp_path: Path, captured: bool) -> None:
    """In a stream and in a CUDA graph, it starts before the previous kernel ends and reads that kernel's new values."""
    module = _load_module(tmp_path, SOURCE)
    ahead = KernelFunction(module, "ahead", threads=256)
    behind = KernelFunction(module, "behind", threads=256, dependent=True)
    values, total = cupy.zeros(ELEMENTS, np.int32), cupy.zeros(1, np.int32)
    ends, starts = cupy.zeros(1, np.uint64), cupy.zeros(1, np.uint64)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    for value in range(1, 6):
        with stream:
            total.fill(0)
        if captured:
            stream.begin_capture(runtime.streamCaptureModeRelaxed)
        ahead(stream, (1, 1, 1), values, ends, np.int32(value))
        behind(stream, (1, 1, 1), total, starts, values)
        if captured:
            graph = stream.end_capture()
            graph.launch(stream)
        stream.synchronize()
        assert int(total[0]) == value * ELEMENTS
        if value > 1:  # the first launch loads code, which may wait for the GPU
            assert int(starts[0]) < int(ends[0])


CLUSTERS = """
#include "cluster.cuh"
// The first block of each cluster collects what the others store in its shared memory.
extern "C" __global__ void gather(float4 *collected, int of_cluster) {
    __shared__ float4 values[8 * 96];
    const int rank = cluster_rank(), number = int(blockIdx.x);
    cluster_arrive();
    cluster_wait();
    for (int i = 0; i < 20 * rank; i++) __nanosleep(1000);  // the others have ended long before the last one stores
    store_in_block(0, values + rank * 96 + threadIdx.x, make_float4(number, rank, threadIdx.x, 1));
    cluster_arrive();
    if (rank != 0) return;
    cluster_wait();
    for (int i = 0; i < of_cluster; i++) collected[(number + i) * 96 + threadIdx.x] = values[i * 96 + threadIdx.x];
}
"""


@pytest.mark.gpu
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_blocks_of_a_cluster_write_to_its_first_block(tmp_path: Path, size: int, captured: bool) -> None:
    gather = KernelFunction(_load_module(tmp_path, CLUSTERS), "gather", threads=96, cluster=lambda _: size)
    blocks = 3 * size
    collected = cupy.full((blocks, 96, 4), np.nan, np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    if captured:
        stream.begin_capture(runtime.streamCaptureModeRelaxed)
    gather(stream, (blocks, 1, 1), collected, np.int32(size))
    if captured:
        stream.end_capture().launch(stream)
    stream.synchronize()
    number, thread = np.meshgrid(np.arange(blocks), np.arange(96), indexing="ij")
    expected = np.stack([number, number % size, thread, np.ones_like(number)], axis=-1)
    np.testing.assert_array_equal(cupy.asnumpy(collected), expected)


def _load_module(folder: Path, source: str) -> Any:
    """Return the loaded module of a kernel source; skip the test on architectures before sm_90."""
    from app.cuda.compiler import compile_kernel
    from app.cuda.device import describe_gpu

    arch = describe_gpu()["architecture"]
    if int("".join(filter(str.isdigit, arch))) < 90:
        pytest.skip(f"{arch} launches neither clusters nor dependent kernels")
    path = folder / "kernel.cu"
    path.write_text(source)
    return load_cubin(compile_kernel(path, {}, arch))
