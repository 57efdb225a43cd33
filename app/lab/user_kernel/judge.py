"""Check and time a kernel that may cheat: every run has new random inputs.

Before each run, outside of the events, images and weights change, the output gets NaN, zeros or the results of the
run before, and the L2 cache is flushed. Which images repeat within a batch, and where, is drawn for each run. The
correct results are computed after the run, so no memory of the card holds them while the kernel runs. The first runs,
the last one and a random third of the others are compared with them, element by element.
"""

import cupy
import numpy as np

from app.kernels.launch import Launch
from app.kernels.problems import Problem
from app.lab.bench.oracle import random_images, random_parameters
from app.lab.bench.trial import Trial
from app.main_job.result import Timing
from app.main_job.statistics import has_enough_samples

CHECKED = 1 / 3  # share of the timed runs whose outputs are compared
POISONS = (0xFF, 0x00, None)  # byte to fill outputs with; None leaves the results of the previous run
ALWAYS = len(POISONS)  # the first runs, all compared, one with each poison


class Judge(Trial):
    """Checks and times a kernel as ``Trial`` does, but with random inputs that change in every run."""

    def __init__(self, problem: Problem, images: int, arch: str) -> None:
        self.rng = np.random.default_rng()
        super().__init__(problem, images, arch, seed=int(self.rng.integers(2**31)))

    def check_and_time(self, launch: Launch, noise: float, l2: str) -> tuple[float, Timing]:
        """Return worst ÷ allowed error, and times in ms until the median's error is ``noise``. Raises WrongResult."""
        actions = len(launch.kernel.config.actions)
        samples: list[float] = []
        worst, compared, run = 0.0, True, 0
        while True:
            enough = has_enough_samples(samples, noise)
            if enough and compared:
                return worst, Timing(tuple(samples))
            poison = POISONS[run if run < ALWAYS else int(self.rng.integers(len(POISONS)))]
            block_indices = self._fill_new_inputs(launch, poison)
            ms = self.clock.time_sample(lambda: launch(self.clock.stream.ptr, self.images), 1, l2, actions)
            compared = enough or run < ALWAYS or self.rng.random() < CHECKED
            if compared:
                worst = max(worst, self.compare_outputs(launch.kernel.variant, cupy.asarray(block_indices)))
            if run > 0:  # the first run loads code
                samples.append(ms)
            run += 1

    def _fill_new_inputs(self, launch: Launch, poison: int | None) -> np.ndarray:
        """Fill x with new images and draw new parameters; fill the outputs with the byte ``poison`` unless it is None.

        Return, for each image of the batch, which of the distinct random images it is, (images,).
        """
        self.parameters = random_parameters(self.rng, self.problem)
        for array, content in zip(self.bound, launch.kernel.pack(self.parameters), strict=True):
            if array is not None and content is not None:
                array.set(content.ravel())
        argument = self.problem.arguments()[0]
        self._block = random_images(self.rng, argument, self._period)
        block_indices = self.rng.integers(0, self._period, self.images)
        x = self.x.reshape(self.images, -1)
        cupy.take(cupy.asarray(self._block), cupy.asarray(block_indices), axis=0, out=x)
        for y in self.outputs.values():
            if poison is not None:
                y.data.memset(poison, y.nbytes)
        cupy.cuda.Device().synchronize()
        return block_indices
