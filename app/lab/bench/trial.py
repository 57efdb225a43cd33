"""Check and time any kernel on one problem, with the same random data for all kernels.

The batch repeats a block of random images, so the correct results of the block determine every element of the output.
The number of images in the block is prime, so no kernel's tiles repeat with the same period.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda.memory import DeviceMemoryError, device_array, upload
from app.kernels.launch import Kernel, Launch
from app.kernels.problems import Problem
from app.kernels.variant import Parameters, Variant, ceil_div
from app.lab.bench.compiling import WrongResult
from app.lab.bench.oracle import (
    apply_variant_error_bound,
    expected_results,
    images_within_budget,
    random_images,
    random_parameters,
)
from app.lab.bench.tolerance import allowed_errors, rms
from app.lab.timer import Clock
from app.main_job.result import Timing

PRIMES = (1, 2, 3, 5, 7, 13, 31, 61, 127, 251)


class Trial:
    """A problem with random data for ``images`` images on the card. Raises DeviceMemoryError if they do not fit."""

    def __init__(self, problem: Problem, images: int, arch: str, seed: int = 0) -> None:
        self.problem = problem
        self.images = images
        self.arch = arch
        self.clock = Clock(arch)
        arguments = {argument.name: argument for argument in problem.arguments()}
        outputs = [argument for argument in arguments.values() if argument.name in ("y", "labels")]
        rng = np.random.default_rng(seed)
        most = min(images_within_budget(problem), images)
        self._period = max(prime for prime in PRIMES if prime <= most)
        block = random_images(rng, arguments["x"], self._period)
        self.x = device_array(arguments["x"].per_image * images, arguments["x"].dtype)
        self._fill_input(upload(block.reshape(-1)))
        self.parameters = random_parameters(rng, problem)
        self.outputs = {each.name: device_array(each.per_image * images, each.dtype) for each in outputs}
        self._block = block
        cupy.cuda.Device().synchronize()  # the clock's stream does not wait for the copies on other streams

    def bind_variant(self, row: Variant, parameters: Parameters | None = None, *, debug: bool = False) -> Launch:
        """Return a launch of the variant on this trial's arrays. debug: compile without optimisation.

        Raises DeviceMemoryError if its workspace does not fit, and UserError if it needs cuBLAS and there is none.
        """
        kernel = Kernel(row, self.problem, self.arch, parameters, debug=debug)
        self.bound = [None if array is None else upload(array) for array in kernel.pack(self.parameters)]
        return kernel.bind([self.x, *self.bound, *self.outputs.values()], self.images)

    def check_outputs(self, launch: Launch) -> float:
        """Launch once; return the outputs' worst error ÷ allowed error. Raises WrongResult if it is above 1 or NaN."""
        return self.check_action(lambda: launch(self.clock.stream.ptr, self.images), launch.kernel.variant)

    def check_action(self, action: Callable[[], object], row: Variant | None = None) -> float:
        """Fill the outputs with NaN, call ``action`` to write them, and compare every element with the correct result.

        row: the kernel that the action launches, for its error bound; None for the default. Return the worst error ÷
        the allowed error. Raises WrongResult if that is above 1 or not a number.
        """
        cupy.cuda.Device().synchronize()
        for y in self.outputs.values():
            y.data.memset_async(0xFF, y.nbytes, self.clock.stream)  # NaN, or a label beyond all classes
        action()
        self.clock.stream.synchronize()
        return self.compare_outputs(None if row is None or row.error_bound is None else row)

    def compare_outputs(self, row: Variant | None, block_indices: Any = None) -> float:
        """Return the outputs' worst error ÷ allowed error. Raises WrongResult if that is above 1 or not a number.

        row: variant whose error bound replaces the default, if it defines one. block_indices: (images,), each image's
        index in the block; None if the block repeats. Raises DeviceMemoryError if memory is short.
        """
        results = {name: y.reshape(self.images, -1) for name, y in self.outputs.items()}
        try:
            default = row is None and block_indices is None
            exact, each, most_rms = self._default_expected_results if default else self._expected_with_tolerances(row)
            worst = 0.0
            for first in range(0, self.images, self._period):
                count = min(self._period, self.images - first)
                chosen = slice(count) if block_indices is None else block_indices[first : first + count]
                values, tolerance = exact[chosen], each[chosen]
                if "y" in results:
                    y = results["y"][first : first + count].astype(np.float64)
                    error = abs(y - values)
                    worst = max(worst, _worst_error(error, tolerance, y, values, first))
                    if count == self._period and most_rms < np.inf:
                        _check_rms(rms(error), most_rms, first)
                if "labels" in results:
                    _check_labels(results["labels"][first : first + count, 0], values, tolerance, first)
            return worst
        except cupy.cuda.memory.OutOfMemoryError:
            raise DeviceMemoryError("the oracle's arrays") from None
        finally:
            cupy.get_default_memory_pool().free_all_blocks()

    def time_launch(self, launch: Launch, noise: float, l2: str) -> Timing:
        """Return times in ms of launches over all images. noise: relative error at which to stop. l2: cold or warm."""
        config = launch.kernel.config
        pieces = ceil_div(self.images, config.images_at_a_time) if config.images_at_a_time else 1
        stream, images = self.clock.stream.ptr, self.images
        return self.clock.time_enqueued_work(lambda: launch(stream, images), noise, l2, len(config.actions) * pieces)

    @cached_property
    def _default_expected_results(self) -> tuple[cupy.ndarray, cupy.ndarray, float]:
        return self._expected_with_tolerances(None)

    def _expected_with_tolerances(self, row: Variant | None) -> tuple[cupy.ndarray, cupy.ndarray, float]:
        """Return the block's exact results, their allowed errors and allowed RMS, by the bound of ``row`` if any."""
        device = [None if array is None else cupy.asarray(array) for array in self.parameters]
        x = cupy.asarray(self._block)
        found = expected_results(self.problem, x, *device)
        if row is not None:
            found = apply_variant_error_bound(row, self.problem, found, x, *device)
        return found.exact, *allowed_errors(self.problem, found)

    def _fill_input(self, block: Any) -> None:
        """Fill the input x with copies of ``block``."""
        for start in range(0, self.x.nbytes, block.nbytes):
            count = min(block.nbytes, self.x.nbytes - start)
            runtime.memcpy(self.x.data.ptr + start, block.data.ptr, count, runtime.memcpyDeviceToDevice)


def _worst_error(
    error: cupy.ndarray, tolerance: cupy.ndarray, y: cupy.ndarray, values: cupy.ndarray, first: int
) -> float:
    """Return the largest error ÷ tolerance. Raises WrongResult if above 1 or NaN. first: index of the first image."""
    ratio = cupy.where(error == 0, 0.0, error / cupy.maximum(tolerance, 1e-300))
    wrong = ~(ratio <= 1)  # NaN is wrong, too
    bad = int(wrong.sum())
    if bad:
        at = int(wrong.reshape(-1).argmax())
        image, element = divmod(at, y.shape[1])
        raise WrongResult(
            f"wrong: image {first + image}, element {element} is {float(y[image, element]):.9g}, must be "
            f"{float(values[image, element]):.9g} ({bad:,} of {y.size:,} elements of these images)"
        )
    return float(ratio.max())


def _check_rms(found: float, most: float, first: int) -> None:
    if not found <= most:
        raise WrongResult(f"wrong: from image {first} on the RMS error is {found:.3g}, must be at most {most:.3g}")


def _check_labels(labels: cupy.ndarray, values: cupy.ndarray, tolerance: cupy.ndarray, first: int) -> None:
    """Raise WrongResult unless each label's score in ``values`` is best, within tolerance. first: the first image."""
    classes = values.shape[1]
    labels = labels.astype(np.int64)
    index = cupy.minimum(labels, classes - 1)[:, None]
    best = values.argmax(axis=1)[:, None]
    short = cupy.take_along_axis(values, best, 1) - cupy.take_along_axis(values, index, 1)
    slack = cupy.take_along_axis(tolerance, best, 1) + cupy.take_along_axis(tolerance, index, 1)
    wrong = ~(short <= slack)[:, 0] | (labels >= classes)
    if int(wrong.sum()):
        at = int(wrong.argmax())
        raise WrongResult(f"wrong: image {first + at} has label {int(labels[at])}, must be {int(best[at, 0])}")
