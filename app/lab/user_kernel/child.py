"""Run functions that launch a user's kernel in a child process: the kernel may crash the context or never end."""

import pickle
from collections.abc import Callable
from typing import Any

from app.base.errors import UserError
from app.cuda import device
from app.files.child_process import Child, answer_requests
from app.lab.bench.compiling import WrongResult, failure_reason

SECONDS = 60.0  # allowed to a kernel for one shape
STARTING = 60.0  # more for the first answer: CUDA starts, the kernel is compiled
VALUE, WRONG, USER_ERROR, NO_MEMORY, BUG = range(5)


class LostError(Exception):
    """The kernel crashed its process or did not come to an end; the text says so in one line."""


class CardProcess:
    """A process with its own context on the current card, started when needed; the ``with`` block's end kills it."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def __enter__(self) -> "CardProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    def call(self, function: Callable[..., Any], *arguments: Any, times: int = 1) -> Any:
        """Return ``function(*arguments)``, a function of a module, called in the process.

        times: how often the usual time is allowed. Raises WrongResult, UserError and DeviceMemoryError as the function
        does, and LostError if the process is lost.
        """
        seconds = times * SECONDS
        if self._child is None:
            self._child, seconds = Child(__name__), seconds + STARTING
        try:
            answer = self._child.ask(pickle.dumps((function, arguments)), seconds=seconds)
        except TimeoutError:
            self.__exit__()
            raise LostError(f"it does not come to an end: stopped after {seconds:g} s") from None
        if not answer:
            self.__exit__()
            raise LostError("it crashed the process that ran it; check --device cpu names the line")
        kind, value = pickle.loads(answer)
        if kind == VALUE:
            return value
        if kind == WRONG:
            raise WrongResult(value)
        if kind == USER_ERROR:
            raise UserError(value)
        if kind == NO_MEMORY:
            from app.cuda.memory import DeviceMemoryError

            raise DeviceMemoryError(value)
        self.__exit__()  # the context takes no more work
        raise LostError(value)


def main() -> None:
    """Run a child process: call the functions that the parent names, until it ends."""
    answer_requests(_call_requested_function)


def _call_requested_function(request: bytes) -> bytes:
    function, arguments = pickle.loads(request)
    try:
        return pickle.dumps((VALUE, function(*arguments)))
    except Exception as error:
        return pickle.dumps(_classify_error(error))


def _classify_error(error: Exception) -> tuple[int, str]:
    """Return the kind of an error and its text in one line."""
    text = " ".join(str(error).split())
    if type(error).__name__ in ("DeviceMemoryError", "OutOfMemoryError"):
        return NO_MEMORY, text
    if isinstance(error, WrongResult | UserError):
        return (WRONG if isinstance(error, WrongResult) else USER_ERROR), text
    if (reason := failure_reason(error)) is not None:
        return WRONG, reason
    try:
        with device.translate_gpu_errors():
            raise error
    except UserError as translated:  # such as a card that another program has for itself: not the kernel's fault
        return USER_ERROR, str(translated)
    except Exception:
        pass
    if device.is_fatal_cuda_error(error):
        return BUG, f"the card stopped it: {text}; check --device cpu names the line"
    return BUG, f"it ended by {type(error).__name__}: {text}"
