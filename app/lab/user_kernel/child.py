"""Run functions that launch a user's kernel in a child process: the kernel may crash the context or never end."""

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from app.base.errors import UserError
from app.cuda import device
from app.files.child_process import Child, answer_requests
from app.lab.bench.compiling import OUT_OF_MEMORY, WrongResult, recoverable_error_reason

SECONDS = 60.0  # time limit of a kernel for one shape
STARTING = 60.0  # added for the first call, in which CUDA starts


class LostError(Exception):
    """The child process crashed, hung or lost its CUDA context; the text says so in one line."""


class CardProcess(AbstractContextManager["CardProcess"]):
    """A child process with its own CUDA context, started by the first call and killed at the ``with`` block's end."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def call(self, function: Callable[..., Any], *arguments: Any, times: int = 1) -> Any:
        """Call a module-level function in the child process and return its result.

        times: multiplies the time limit. Raises WrongResult, UserError and DeviceMemoryError as the function does, and
        LostError if the process is lost.
        """
        seconds = times * SECONDS
        if self._child is None:
            self._child, seconds = Child(__name__), seconds + STARTING
        try:
            answer = self._child.send_request(pickle.dumps((function, arguments)), seconds=seconds)
        except TimeoutError:
            self.__exit__()
            raise LostError(f"it does not come to an end: stopped after {seconds:g} s") from None
        if not answer:
            self.__exit__()
            raise LostError("it crashed the process that ran it; check --device cpu names the line")
        found = pickle.loads(answer)
        if isinstance(found, LostError):
            self.__exit__()  # the context takes no more work
        if isinstance(found, Exception):
            raise found
        return found


def main() -> None:
    """Run the child process: call the functions that the parent sends, until the parent ends."""
    answer_requests(_call_requested_function)


def _call_requested_function(request: bytes) -> bytes:
    function, arguments = pickle.loads(request)
    try:
        return pickle.dumps(function(*arguments))
    except Exception as error:
        return pickle.dumps(_convert_error(error))


def _convert_error(error: Exception) -> Exception:
    """Return the error that ``CardProcess.call`` raises for this one, with a text in one line."""
    text = " ".join(str(error).split())
    if type(error).__name__ in OUT_OF_MEMORY:
        from app.cuda.memory import DeviceMemoryError

        return DeviceMemoryError(text)
    if isinstance(error, WrongResult | UserError):
        return WrongResult(text) if isinstance(error, WrongResult) else UserError(text)
    if (reason := recoverable_error_reason(error)) is not None:
        return WrongResult(reason)
    try:
        with device.translate_gpu_errors():
            raise error
    except UserError as translated:  # such as a card in exclusive use by another program: not the kernel's fault
        return translated
    except Exception:
        pass
    if device.is_fatal_cuda_error(error):
        return LostError(f"the card stopped it: {text}; check --device cpu names the line")
    return LostError(f"it ended by {type(error).__name__}: {text}")
