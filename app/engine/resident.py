"""Classify single images by a persistent kernel, which polls page-locked memory for images and writes answers there.

Every word of a request and of an answer is stored beside a flag, so whoever reads the flag has read the word. The
kernel occupies three multiprocessors while it waits. It ends on request, after ``IDLE`` seconds without a request, and
after ``LIFE`` seconds in any case; a thread that synchronises the whole device waits no longer than that. The next
request starts it again.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from math import prod
from struct import Struct

import cupy
import numpy as np
from cupy.cuda import runtime

from app.base.errors import UserError
from app.cuda.compiler import KERNEL_DIR, compile_kernel
from app.cuda.memory import map_to_device, pinned_array
from app.engine.buffers import LoadedPlan
from app.kernels.launch import LoadedKernel, load_cubin
from app.kernels.variant import SHARED_LIMIT
from app.layers import Shape
from app.planning.plan import LOGITS, ExecutionPlan

SOURCE, ENTRY = KERNEL_DIR / "fused" / "resident_01_wgmma.cu", "resident_wgmma"
SERVED = (("wgmma", "wgmma-exact"), ("wgmma",))  # names of the plan's two kernels, whose arithmetic this kernel repeats
BLOCKS = 3  # in its cluster, each alone on a multiprocessor
SHARED_BYTES = SHARED_LIMIT[90] << 10  # per block: all of a multiprocessor's
MOST = 8  # images per request
IDLE, LIFE = 0.05, 0.1  # seconds
NUMBERS = 1 << 28  # requests are numbered modulo this
POLLS = range(100)  # of the answer, between two checks whether the kernel still runs
UINT8, UINT32 = np.dtype(np.uint8), np.dtype(np.uint32)
NOT_SERVED = (
    "resident=True serves lenet5 on Hopper GPUs beside an x86-64 processor, in fp16, or in fp32x with weights exact in "
    "float16 (python -m data_tools round): leave it out"
)


def check_plan_supported(plan: ExecutionPlan) -> None:
    """Raise UserError unless the persistent kernel can compute this plan."""
    names = [node.variant.name for node in plan.nodes]
    served = len(names) == len(SERVED) and all(name in rows for name, rows in zip(names, SERVED, strict=True))
    single_part = all(getattr(node.problem, "weight_parts", 1) == 1 for node in plan.nodes)
    # A flag proves its word only if a processor's stores become visible in their order: x86-64's do.
    if not (served and single_part and plan.input_dtype == "uint8" and platform.machine() == "x86_64"):
        raise UserError(NOT_SERVED)


class ResidentKernel:
    """A persistent kernel with its stream and page-locked memory. Any thread may call it, one at a time.

    Raises UserError for a plan that the kernel cannot compute.
    """

    def __init__(self, loaded_plan: LoadedPlan) -> None:
        plan = loaded_plan.plan
        check_plan_supported(plan)
        self._card = cupy.cuda.Device().id
        self._stream = cupy.cuda.Stream(non_blocking=True)
        _, classes = plan.buffers[LOGITS]
        self._requests = _allocate_flagged_words(prod(plan.input_shape) // 4)
        self._answers = _allocate_flagged_words(classes + 1)
        self._ended = pinned_array((1,), np.uint32)  # number of the last launch that has ended
        self._ended[0] = 0
        self._launch, self._first_number = ctypes.c_uint32(0), ctypes.c_uint32(0)
        self._number = 1  # of the next request
        self._kernel = self._compile_launcher(loaded_plan)
        # Views are made once, here: making one takes as long as a transfer over the bus.
        self._flags, self._first_flags = self._requests[:, :, 1], self._requests[0, :, 1]
        self._words = self._answers.reshape(-1).data
        self._end = self._ended.data
        self._forms = _make_request_forms(self._requests, plan.input_shape, classes + 1)
        self._labels = [np.array(label, np.uint8) for label in range(classes + 1)]

    def run(self, images: np.ndarray) -> tuple[np.ndarray, Callable[[], np.ndarray]] | None:
        """Classify up to eight uint8 images, (N, …), or a single one; return labels, and a function for the logits.

        Return None for an array that does not fit in a request: of another type or shape, not contiguous, or of more
        images. Every Python instruction here adds to the latency.
        """
        form = self._forms.get(images.shape)
        if form is None or images.dtype != UINT8 or not images.flags.c_contiguous:
            return None
        count, pixels, unpack, last = form
        flag, words = self._number << 4 | count, self._words
        try:
            pixels[...] = images.view(UINT32)
            if count > 1:
                self._flags[1:count] = flag
            self._first_flags.fill(flag)  # last: a reader that sees these finds all images
            if self._end[0] == self._launch.value:
                self._start()
            while words[last] != flag:
                for _ in POLLS:
                    if words[last] == flag:
                        break
                else:
                    self._restart_if_ended()
            while (answer := unpack(words))[1::2] != (flag,) * (last // 2 + 1):
                pass
            self._number = (self._number + 1) % NUMBERS
        except BaseException:
            self._abandon_request()
            raise
        if images.ndim == 2:
            return self._labels[answer[-2]].copy(), lambda: _answer_logits(answer, 1)[0]
        return _answer_words(answer, count)[:, -1, 0].astype(UINT8), lambda: _answer_logits(answer, count)

    def _restart_if_ended(self) -> None:
        """Start the kernel again if it has ended without an answer. Raise the driver's error if it has failed."""
        if self._end[0] == self._launch.value:
            self._start()
        self._stream.done  # noqa: B018 - asks the driver

    def _start(self) -> None:
        current = runtime.getDevice()
        runtime.setDevice(self._card)  # also binds the context to a new thread, which the launch needs
        try:
            self._launch.value = self._launch.value % 0xFFFFFFFF + 1
            self._first_number.value = self._number
            self._kernel(self._stream.ptr, BLOCKS)
        finally:
            runtime.setDevice(current)

    def request_end(self) -> None:
        """Ask the kernel to end, which frees its multiprocessors; return at once."""
        if self._end[0] != self._launch.value:
            self._first_flags.fill(self._number << 4)
            self._number = (self._number + 1) % NUMBERS

    def close(self) -> None:
        """Ask the kernel to end, and wait until it has ended."""
        self.request_end()
        self._stream.synchronize()

    def _abandon_request(self) -> None:
        """Drop an interrupted request, whether or not the kernel has read it, and wait until the kernel has ended."""
        self._stream.synchronize()
        self._answers[...] = 0
        self._number = (self._number + 2) % NUMBERS

    def _compile_launcher(self, loaded_plan: LoadedPlan) -> Callable[[int, int], None]:
        """Compile the kernel; return a function that launches it, given a stream's pointer and a number of blocks."""
        plan = loaded_plan.plan
        entry = LoadedKernel(
            load_cubin(compile_kernel(SOURCE, compile_time_constants(plan), plan.arch)),
            ENTRY,
            threads=128 * (4 if plan.arithmetic == "float16" else 3),  # warpgroups as in the kernel
            shared_bytes=SHARED_BYTES,
            cluster=lambda blocks: blocks,
        )
        weights = [array for arrays in loaded_plan.weights for array in arrays]
        host = [map_to_device(array) for array in (self._requests, self._answers, self._ended)]
        self._kept = (weights, host)  # alive as long as the kernel
        arrays = (host[0], *weights, *host[1:])
        addresses = [ctypes.c_void_p(None if array is None else array.data.ptr) for array in arrays]
        limits = [ctypes.c_uint64(int(seconds * 1e9)) for seconds in (IDLE, LIFE)]
        values = [*addresses, self._launch, self._first_number, *limits]
        return entry.make_launcher(values, lambda blocks: (blocks, 1, 1))


def compile_time_constants(plan: ExecutionPlan) -> dict[str, str | int]:
    """Return the persistent kernel's compile-time constants: those of the plan's two kernels, whose work it does."""
    convolutions, products = (node.variant.launch_config(node.problem, node.settings).defines for node in plan.nodes)
    own = {"ROWS", "STAGES", "FEW", "STEP_BLOCKS"}  # of the launch for many images
    shared = {name: value for name, value in products.items() if name not in own}
    return shared | convolutions | {"RESIDENT_BYTES": SHARED_BYTES}


def _allocate_flagged_words(words: int) -> np.ndarray:
    """Return page-locked zeros for MOST images, each of so many pairs (word, flag): (MOST, words, 2) uint32."""
    array = pinned_array((MOST, words, 2), np.uint32)
    array[...] = 0
    return array


Form = tuple[int, np.ndarray, Callable[..., tuple[int, ...]], int]


def _make_request_forms(requests: np.ndarray, shape: Shape, words: int) -> dict[Shape, Form]:
    """Return shape of the given images → form of a request. shape: (C, H, W). words: number in an image's answer.

    A form contains the number of images, the view of ``requests`` that receives them, the function that unpacks their
    answers, and the index of the last flag in the answers.
    """
    channels, height, width = shape
    assert channels == 1
    pixels = requests[:, :, 0].reshape(MOST, height, width // 4)
    ends = [2 * words * count for count in range(MOST + 1)]
    unpack = [Struct(f"<{end}I").unpack_from for end in ends]
    found: dict[Shape, Form] = {(height, width): (1, pixels[0], unpack[1], ends[1] - 1)}
    for count in range(1, MOST + 1):
        others = unpack[count], ends[count] - 1
        found[count, height, width] = count, pixels[:count], *others
        found[count, channels, height, width] = count, pixels[:count, None], *others
    return found


def _answer_words(answer: tuple[int, ...], count: int) -> np.ndarray:
    """Return ``answer``, the words and flags for ``count`` images, as an array: (count, classes + 1, 2) uint32."""
    return np.array(answer, np.uint32).reshape(count, -1, 2)


def _answer_logits(answer: tuple[int, ...], count: int) -> np.ndarray:
    """Return the logits, (count, classes) float32, whose bits are in ``answer``, the words and flags of an answer."""
    return _answer_words(answer, count)[:, :-1, 0].copy().view(np.float32)
