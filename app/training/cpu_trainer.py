"""Train with NumPy on the CPU's cores, and choose between the CPU's and the GPU's trainer."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from functools import partial

import numpy as np

from app.base.errors import UserError
from app.base.processor import check_address_space, core_count, keep_freed_memory
from app.cuda.device import translate_gpu_errors
from app.training.checkpoint import TrainingJob
from app.training.gradients import Arrays
from app.training.loop import Trainer
from app.training.model import add_l2_gradient, cross_entropy
from app.training.optimisers import Slots, build_optimiser, one_cycle_schedule
from app.training.random_bits import FRACTION_BITS, RandomUse, dropout_threshold_and_factor, integers_below, random_bits
from app.training.settings import Settings
from app.training.team import Team, member_share

PIECE = 32  # images per task of a thread; fixed, so that sums do not depend on the number of cores
QUIET = partial(np.errstate, over="ignore", invalid="ignore", divide="ignore")  # the loop reports NaN and infinity


class CpuTrainer:
    """Trains with the NumPy references, pieces of a batch in parallel. The number of threads does not affect results.

    pool: runs the pieces. team: processes that share each batch. check_interrupt: called before each piece; its
    exceptions end the work on the batch.
    """

    batches_per_call = 1  # Ctrl-C and the progress bar wait for the end of a call

    def __init__(
        self,
        job: TrainingJob,
        pool: ThreadPoolExecutor,
        team: Team,
        check_interrupt: Callable[[], object] = lambda: None,
    ) -> None:
        self.model, self.settings = job.model, job.settings
        self.images, self.labels, self.teacher = job.images, job.labels, job.teacher
        self.parameters, self.slots = deepcopy((job.progress.parameters, job.progress.slots))
        self.optimiser = build_optimiser(job.settings)
        self._pool, self._team, self._check_interrupt = pool, team, check_interrupt
        # One array for all gradients, so that a team sums them in one call; each gradient is a view of it.
        self._gradients = np.zeros(sum(array.size for array in self.parameters.values()), np.float32)
        ends = np.cumsum([array.size for array in self.parameters.values()])[:-1]
        pieces = zip(self.parameters.items(), np.split(self._gradients, ends), strict=True)
        self._gradient = {name: piece.reshape(array.shape) for (name, array), piece in pieces}

    def train(self, batches: Sequence[np.ndarray], epoch: int, step: int) -> list[tuple[float, int]]:
        """Train on batches of image indices; return each one's loss and correct answers. See ``loop.Trainer.train``."""
        found = np.zeros((len(batches), 2))
        penalties = []
        for number, items in enumerate(batches):
            self._gradients[:] = 0
            pieces = self._map_pieces(
                partial(self._compute_piece_gradients, epoch=epoch, total=len(items)), member_share(items, self._team)
            )
            with QUIET():
                for loss, correct, part in pieces:  # in order, for reproducible sums
                    found[number] += loss, correct
                    for name, array in self._gradient.items():
                        array += part[name]
                self._team.all_reduce(self._gradients)
            penalties.append(self._update_parameters(self._gradient, step + number))
        self._team.all_reduce(found)
        return [
            (float(loss) + penalty, int(correct)) for (loss, correct), penalty in zip(found, penalties, strict=True)
        ]

    def _update_parameters(self, gradients: Arrays, step: int) -> float:
        """Update the parameters by the optimiser; return the L2 loss. step: number of earlier updates."""
        schedule = one_cycle_schedule(step, self.settings.steps, self.settings.rate)
        with QUIET():
            penalty = add_l2_gradient(self.parameters, gradients, self.settings.l2)
            self.optimiser.update(self.parameters, gradients, self.slots, schedule)
        return penalty

    def evaluate(self, items: np.ndarray) -> tuple[float, int]:
        """Return the mean loss and the number of correct answers of the images with the indices ``items``."""

        def evaluate_piece(some: np.ndarray) -> tuple[float, int]:
            logits = self.model.compute_logits(self.parameters, self.images[some])
            loss, _ = cross_entropy(logits, self.labels[some], 0.0, len(items))
            return loss, int((logits.argmax(axis=1) == self.labels[some]).sum())

        found = np.zeros(2)
        for part in self._map_pieces(evaluate_piece, member_share(items, self._team)):
            found += part
        self._team.all_reduce(found)
        return float(found[0]), int(found[1])

    def state(self) -> tuple[Arrays, Slots]:
        """Return float32 copies of the parameters and of the optimiser's state."""
        return deepcopy((self.parameters, self.slots))

    def _compute_piece_gradients(self, items: np.ndarray, epoch: int, total: int) -> tuple[float, int, Arrays]:
        settings = self.settings
        images = augment_images(
            self.images[items], items, seed=settings.seed, epoch=epoch, shift=settings.shift, flip=settings.flip
        )
        return self.model.compute_gradients(
            self.parameters,
            images,
            self.labels[items],
            smoothing=settings.smoothing,
            total=total,
            masks=lambda layer, shape: dropout_mask(settings, layer, shape, items, epoch),
            teacher=self.teacher,
        )

    def _map_pieces(self, work: Callable[[np.ndarray], tuple], items: np.ndarray) -> Iterator[tuple]:
        def run_piece(some: np.ndarray) -> tuple:
            self._check_interrupt()
            with QUIET():
                return work(some)

        return self._pool.map(run_piece, [items[at : at + PIECE] for at in range(0, len(items), PIECE)])


@contextmanager
def open_cpu_pool(processes: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a thread pool for one of ``processes`` processes that share the cores: a thread for each core of its share.

    The matrix library should use one thread per call (set by main.py). Raises MemoryError for lack of address space.
    """
    keep_freed_memory()
    threads = max(core_count() // processes, 1)
    check_address_space(threads)
    with ThreadPoolExecutor(threads) as pool:
        yield pool


def augment_images(
    images: np.ndarray, items: np.ndarray, *, seed: int, epoch: int, shift: int, flip: bool
) -> np.ndarray:
    """Return images (B, C, H, W), shifted at random by whole pixels with zeros outside, and half of them flipped.

    items: (B,) indices in the training set. shift: most pixels in each direction. The changes to an image depend only
    on seed, epoch and item.
    """
    if not (shift or flip):
        return images
    bits = random_bits(seed, RandomUse.AUGMENT, items, 3, epoch=epoch)
    rows = integers_below(bits[:, 0:1], 2 * shift + 1) + np.arange(images.shape[2])
    columns = integers_below(bits[:, 1:2], 2 * shift + 1) + np.arange(images.shape[3])
    if flip:
        columns = np.where(integers_below(bits[:, 2:3], 2) == 1, columns[:, ::-1], columns)
    padded = np.pad(images, ((0, 0), (0, 0), (shift, shift), (shift, shift))).transpose(0, 2, 3, 1)
    image = np.arange(len(images))[:, None, None]
    return padded[image, rows[:, :, None], columns[:, None, :]].transpose(0, 3, 1, 2)


def dropout_mask(
    settings: Settings, layer: str, shape: tuple[int, ...], items: np.ndarray, epoch: int
) -> np.ndarray | None:
    """Return the factors of a layer's input: 0 for the dropped share, else 1 / (1 - share); None without dropout.

    shape: of the input. items: (B,) indices of the images in the training set.
    """
    for part, (name, share) in enumerate(settings.dropout):
        if name == layer:
            bits = random_bits(settings.seed, RandomUse.DROPOUT, items, int(np.prod(shape[1:])), part=part, epoch=epoch)
            least, factor = dropout_threshold_and_factor(share)
            kept = bits >> np.uint64(64 - FRACTION_BITS) >= np.uint64(least)
            return (kept * factor).reshape(shape)
    return None


@contextmanager
def open_trainer(job: TrainingJob, team: Team, check_interrupt: Callable[[], object]) -> Iterator[Trainer]:
    """Yield the trainer of this process, in the state of the job's progress.

    check_interrupt: called regularly, from any thread; its exceptions end the training. In the block, GPU errors and
    lack of memory become UserErrors.
    """
    if job.device == "cpu":
        with translate_memory_errors(job.settings), open_cpu_pool(team.size) as pool:
            yield CpuTrainer(job, pool, team, check_interrupt)
        return
    from app.cuda.memory import DeviceMemoryError
    from app.training.gpu.trainer import GpuTrainer

    with translate_gpu_errors():
        try:
            yield GpuTrainer(job, team)
        except DeviceMemoryError:
            remedy = "choose a smaller --batch-size, or use --device cpu"
            raise UserError(_out_of_memory_message("the GPU", job.settings, remedy)) from None


@contextmanager
def translate_memory_errors(settings: Settings) -> Iterator[None]:
    """Turn a MemoryError in the block into a UserError that names the settings to reduce."""
    try:
        yield
    except MemoryError:
        remedy = "raise the limit (ulimit -v), or choose a smaller --batch-size or network"
        raise UserError(_out_of_memory_message("this machine", settings, remedy)) from None


def _out_of_memory_message(where: str, settings: Settings, remedy: str) -> str:
    return (
        f"{where} has too little free memory to train {settings.network} with batches of {settings.batch:,}: "
        f"free some, {remedy}"
    )
