"""Define ``Classifier``: a network with its weights that classifies arrays of images on the GPU or the CPU."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
import numpy.typing as npt

from app.base.errors import UserError
from app.base.precision import PRECISIONS, SHORT
from app.cuda import device as devices
from app.cuda.cards import device_number
from app.engine.classifier.arguments import (
    BadArgumentError,
    check_choice,
    check_device,
    is_gpu_array,
    network_request,
    validate_host_images,
)
from app.engine.classifier.engines import Engines
from app.layers import Softmax
from app.network.graph import load_network
from app.planning.request import NetworkRequest, gpu_only_error

if TYPE_CHECKING:
    import cupy

    from app.engine.classifier.card_engines import CardEngines
    from app.engine.resident import ResidentKernel


class Classifier:
    """Classify images: ``labels = classifier(images)``. A context manager that allows any number of calls.

    graph: the network with its weights. classes: their names, or None if the weights name none. device: ``cuda``,
    ``cuda:N`` or ``cpu``. why_cpu: why ``auto`` chose the CPU, in one line; otherwise None.

    Threads may share a classifier, which runs their calls one after another. ``logits`` and ``probabilities`` belong to
    the last call of the calling thread.
    """

    def __init__(
        self,
        network_or_weights: str | Path = "lenet5",
        *,
        device: str = "auto",
        precision: str = "auto",
        sparse: bool = True,
        resident: bool = False,
    ) -> None:
        """Load a network by its name, or from a network file (``.toml``) or a weights file (HDF5).

        device: ``auto`` (a GPU if there is one), ``cuda`` (CuPy's current GPU), ``cuda:N`` (CUDA's number N) or
        ``cpu``. precision: ``auto``, or a value of the option ``--precision``. sparse: False multiplies 2:4
        sparse weights as dense ones. resident: a persistent kernel classifies up to eight images a call; it occupies
        three multiprocessors until a moment after the last call. It exists only for lenet5 on Hopper, and then all
        kernels multiply sparse weights as dense ones. Raises a UserError that is also a ValueError.
        """
        check_choice("precision", precision, ("auto", *PRECISIONS))
        try:
            request = replace(network_request(network_or_weights, precision), sparse=sparse)
            self._open_engines(request, device, resident)
            if resident:
                self._prepare_resident_kernel()
        except BadArgumentError:
            raise
        except UserError as error:
            raise BadArgumentError(str(error)) from error

    @classmethod
    def from_request(cls, request: NetworkRequest, device: str = "auto") -> Classifier:
        """Return the classifier that a command's options describe. Raises UserError."""
        classifier = cls.__new__(cls)
        classifier._open_engines(request, device)
        return classifier

    def _open_engines(self, request: NetworkRequest, device: str, resident: bool = False) -> None:
        check_device(device)
        self.graph, self.weights = load_network(request.network, request.weights)
        self.classes = self.weights.classes
        self.device, self.why_cpu = devices.choose_device(device)
        if self.device == "cpu":
            request.reject_gpu_options()
            if not request.sparse:
                raise gpu_only_error("--no-sparse")
            self._engines: Engines | CardEngines | None = Engines()
        else:
            with devices.translate_gpu_errors():
                from app.engine.classifier.card_engines import CardEngines
                from app.planning.choices import resolve_choices

                # The resident kernel has no sparse form, and all kernels of a classifier must give equal bits.
                choices = resolve_choices(replace(request, sparse=request.sparse and not resident), self.graph)
                self._engines = CardEngines(choices, device_number(self.device))
        self._softmax = any(isinstance(step.layer, Softmax) for step in self.graph.steps[-2:])
        self._lock = threading.Lock()
        self._last = threading.local()
        self._resident: ResidentKernel | None = None

    def _prepare_resident_kernel(self) -> None:
        """Prepare a persistent kernel for calls with few images. Raises UserError if none supports the network."""
        engines = self._require_open_engines()
        try:
            if engines.device == "cpu":
                raise BadArgumentError(f"resident=True needs a GPU: {self.why_cpu or 'device is cpu'}")
            with devices.translate_gpu_errors():
                self._resident = cast("CardEngines", engines).resident_kernel(self.graph)
        except Exception:
            self.close()
            raise

    @overload
    def __call__(
        self, images: Any, *, on_card: Literal[False] = False, stream: Any = None
    ) -> npt.NDArray[np.uint8]: ...

    @overload
    def __call__(self, images: Any, *, on_card: bool, stream: Any = None) -> Any: ...

    def __call__(self, images: Any, *, on_card: bool = False, stream: Any = None) -> Any:
        """Classify images; return their labels, (N,) uint8, or () for one image.

        images: (N, H, W) or (N, C, H, W), or one image (H, W) or (C, H, W); uint8 pixels, or floats in [0, 1]. Objects
        are light on a black background. Networks that resize images take uint8 images of the size before or after
        resizing. A GPU array of CuPy, PyTorch, JAX or another library is read without a copy to the host; the range of
        its floats is not checked.

        stream: stream of CuPy or PyTorch, or its pointer, on which GPU images are ready and work is enqueued; None for
        CuPy's current one. on_card: return CuPy arrays without waiting, also from ``logits`` and ``probabilities``. Use
        them on the same stream, and keep the images alive until the stream has finished. Without ``on_card``, all
        results are NumPy arrays.

        Raises UserError; for images of a wrong type, range or shape it is also a ValueError.
        """
        labels: Any
        scores: Any
        try:
            if self._resident is not None and not on_card and stream is None and type(images) is np.ndarray:
                with self._lock:
                    answer = None if self._resident is None else self._resident.run(images)
                if answer is not None:
                    labels, self._last.scores = answer
                    return labels
            on_host, engines = not on_card and stream is None, self._engines
            known = engines.match_known_shape(images) if on_host and engines is not None else None
            batch = None if known is not None or is_gpu_array(images) else validate_host_images(images, self.graph)
            with self._lock:
                engines = self._require_open_engines()
                if self._resident is not None:
                    self._resident.request_end()  # other kernels want all multiprocessors
                if known is not None:
                    engine, pixels, single = known
                    labels, scores = engines.compute_results(engine, pixels)
                elif batch is not None and on_host:
                    labels, scores = engines.run(images, batch)
                    single = batch.single
                elif engines.device == "cpu":
                    why = self.why_cpu or "it was made with device='cpu'"
                    raise BadArgumentError(f"arrays and streams on a card need a classifier on a GPU: {why}")
                else:
                    given = images if batch is None else batch.images
                    card = cast("CardEngines", engines)
                    labels, scores, single = card.run_on_card(self.graph, given, stream, wait=not on_card)
                    single = single if batch is None else batch.single
        except Exception:
            with devices.translate_gpu_errors():  # not for calls on the card, which take microseconds
                raise
        self._last.scores = scores[0] if single else scores
        return labels.reshape(()) if single else labels

    def empty(self, n: int) -> npt.NDArray[np.uint8]:
        """Return an uninitialised array for ``n`` images, (n, H, W), or (n, C, H, W) with several channels.

        On a GPU it is page-locked: the GPU reads large batches directly from it, without another copy in host memory.
        Its memory is freed with the array. Raises UserError for ``n`` < 0, if memory is short, and after ``close``.
        """
        channels, *size = self.graph.network.input_shape
        if n < 0:
            raise BadArgumentError(f"n={n}: give a number of images")
        with devices.translate_gpu_errors():
            array: npt.NDArray[np.uint8] = self._require_open_engines().empty(
                (n, *([channels] if channels > 1 else []), *size)
            )
        return array

    @property
    def logits(self) -> npt.NDArray[np.float32] | cupy.ndarray:
        """Return the last call's scores, (N, classes) or (classes,), float32. Raises UserError before the first call.

        If the network ends in a softmax, they are the logarithms of its probabilities.
        """
        scores = self._last_scores()
        if not self._softmax:
            return scores
        with np.errstate(divide="ignore"), _scores_device_context(scores):
            return np.log(scores)

    @property
    def probabilities(self) -> npt.NDArray[np.float32] | cupy.ndarray:
        """Return the last call's probabilities, (N, classes) or (classes,), float32: the softmax of the logits.

        The last call is that of the calling thread. Raises UserError before its first call.
        """
        scores = self._last_scores()
        if self._softmax:
            return scores
        with np.errstate(invalid="ignore"), _scores_device_context(scores):  # infinite scores give NaN
            exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
            return exponentials / exponentials.sum(axis=-1, keepdims=True)

    @property
    def precision(self) -> str:
        """Return the coarsest precision of any layer. Raises UserError before the first call on a GPU, or if closed."""
        arithmetic = self._require_open_engines().arithmetic
        if arithmetic is None:
            raise BadArgumentError("the precision is chosen at the first call: call the classifier first")
        return SHORT[arithmetic]

    def describe(self) -> dict[str, Any]:
        """Return the device and the software used so far, as reports record both. Raises UserError if closed."""
        with self._lock:
            return self._require_open_engines().describe()

    def _require_open_engines(self) -> Engines:
        if self._engines is None:
            raise BadArgumentError("the classifier is closed: make another one")
        return self._engines

    def _last_scores(self) -> Any:
        scores = getattr(self._last, "scores", None)
        if scores is None:
            raise BadArgumentError("nothing was classified yet in this thread: call the classifier first")
        if callable(scores):  # not yet copied to the host
            with devices.translate_gpu_errors():
                scores = self._last.scores = scores()
        return scores

    def close(self) -> None:
        """Free all memory, also on the GPU; the last results remain readable."""
        with self._lock:
            if self._resident is not None:
                self._resident.close()
                self._resident = None
            if self._engines is not None:
                self._engines.close()
            self._engines = None

    def __enter__(self) -> Classifier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _scores_device_context(scores: Any) -> AbstractContextManager[object]:
    """Make the GPU that holds the scores the current one while the block runs; do nothing for NumPy arrays."""
    return nullcontext() if isinstance(scores, np.ndarray) else scores.device
