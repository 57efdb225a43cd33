"""Choose GPUs by number: ``--device cuda:N`` for one process, ``--devices all|0,2`` for one process per GPU.

The numbers are CUDA's, among the GPUs that CUDA_VISIBLE_DEVICES lists. To choose a GPU, the program sets
CUDA_VISIBLE_DEVICES to that GPU alone before the driver starts. All threads, child processes and NVML then use the same
GPU.
"""

import ctypes
import os
import re
from collections.abc import Collection
from contextlib import suppress
from threading import Thread

from app.base.errors import UserError, did_you_mean_hint
from app.base.frozen import Frozen
from app.files.checks import BadValueError, format_for_error

VARIABLE = "CUDA_VISIBLE_DEVICES"
ALL = "all"
NOT_STARTED = 3  # CUDA_ERROR_NOT_INITIALIZED
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
DEVICES = ("auto", "cuda", "cuda:N", "cpu")
_NUMBERED = re.compile("cuda:(0|[1-9][0-9]{0,3})")
_shown: list["NumberedCard"] = []  # the GPU that ``make_only_visible`` has chosen, if any


class NumberedCard(Frozen):
    """A GPU. number: CUDA's number of it. visible: value of CUDA_VISIBLE_DEVICES that shows only this GPU."""

    number: int
    visible: str

    def __str__(self) -> str:
        return f"cuda:{self.number}"

    def make_only_visible(self) -> None:
        """Make this the only GPU that the process sees. Raises UserError if CUDA has started already."""
        try:
            running = ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != NOT_STARTED
        except OSError:
            running = False
        if running:
            raise UserError(
                "CUDA has started in this process, which can choose no card any more: "
                f"start the process with {VARIABLE}={self.visible}"
            )
        os.environ[VARIABLE] = self.visible
        _shown[:] = [self]


def parse_device_name(text: str, known: Collection[str] = DEVICES) -> str:
    """Return ``text`` if it names a device. known: accepted forms, such as ``cuda:N``. Raises BadValueError."""
    kind = "cuda:N" if _NUMBERED.fullmatch(text) else text
    if kind in known and text != "cuda:N":
        return text
    raise BadValueError(f"{format_for_error(text)} is none of {', '.join(known)}{did_you_mean_hint(text, known)}")


def device_number(device: str) -> int | None:
    """Return N for ``cuda:N``, and None for other names of devices."""
    number = device.partition(":")[2]
    return int(number) if number else None


def original_device_number(current: int) -> int:
    """Return the user's number of a GPU. current: CUDA's number of it in this process, which may see only that GPU."""
    return _shown[0].number if _shown else current


def start_driver() -> int:
    """Start the driver in this process; return the number of visible GPUs. Raises UserError if there are none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise UserError("no NVIDIA driver library (libcuda.so.1) is installed") from None
    count = ctypes.c_int()
    status = driver.cuInit(0)
    if status == 0:
        status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status not in (0, NO_DEVICE):
        raise UserError(f"the NVIDIA driver does not start (cuInit returned {status})")
    if status == NO_DEVICE or count.value == 0:
        raise UserError(f"the NVIDIA driver sees no device ({VARIABLE} may hide it)")
    return count.value


def create_context_in_background() -> None:
    """Start a thread that starts the driver and creates the context of the current GPU, by calls of the driver alone.

    Meanwhile the caller imports modules and reads files; CuPy then uses the context. This function reports no errors:
    ``why_no_gpu`` repeats the calls and reports them. Python waits for the thread before it exits.
    """
    with suppress(RuntimeError):  # no more threads can be started
        Thread(target=_create_context, name="context").start()


def _create_context() -> None:
    with suppress(UserError):
        start_driver()
        # The primary context, which CUDA's runtime uses, of the first visible GPU, which is the current one.
        driver, first = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        if driver.cuDeviceGet(ctypes.byref(first), 0) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), first)


def select_visible_device(device: str) -> str:
    """Make the GPU of ``cuda:N`` the only visible one; return ``device`` without the number. Raises UserError.

    The function starts the driver if ``device`` has a number. Call it before CUDA starts.
    """
    number = device_number(device)
    if number is None:
        return device
    before, shown, listed, reason = os.environ.get(VARIABLE), [*_shown], _cuda_visible_devices(), ""
    try:
        if listed is None or number < len(listed):
            NumberedCard(number, str(number) if listed is None else listed[number]).make_only_visible()
            start_driver()
            return device.partition(":")[0]
    except UserError as error:
        reason = str(error)
        _shown[:] = shown
        os.environ.pop(VARIABLE, None)
        os.environ |= {} if before is None else {VARIABLE: before}
    try:
        cards = visible_cards()
    except UserError as error:
        reason = f"{error}; use --device cpu, or auto to use a GPU only if there is one"
    else:
        reason = reason if number < len(cards) else describe_gpu_count(len(cards))
    raise UserError(f"--device {device}: {reason}")


def parse_device_list(text: str) -> list[NumberedCard]:
    """Return the GPUs that ``--devices`` names: ``all``, or numbers as in ``0,2``. It does not start the driver.

    Raises UserError for any other text, for a GPU named twice, and for a GPU that does not exist.
    """
    words = text.split(",")
    if text != ALL and not all(word.isascii() and word.isdecimal() for word in words):
        raise UserError(f"--devices {text}: give {ALL}, or numbers of GPUs, as in 0,2")
    numbers = [] if text == ALL else [int(word) for word in words]
    for number in numbers:
        if numbers.count(number) > 1:
            raise UserError(f"--devices {text}: cuda:{number} is named twice, name it once")
    try:
        cards = visible_cards()
    except UserError as error:
        raise UserError(f"--devices {text}: {error}; leave it out to use the CPU") from None
    if numbers and max(numbers) >= len(cards):
        raise UserError(f"--devices {text}: no cuda:{max(numbers)}, {describe_gpu_count(len(cards))}")
    return [cards[number] for number in numbers] or cards


def visible_cards() -> list[NumberedCard]:
    """Return all GPUs that CUDA sees, at least one. A child process asks the driver. Raises UserError."""
    from app.base.processes import describe_exit_code  # imported only here: most runs ask no other process
    from app.files.child_process import Child

    with Child(__name__) as process:
        answer = process.send_request(b"").decode()
        if not answer:
            raise UserError(f"the NVIDIA driver does not start: its process {describe_exit_code(process.exit_code())}")
    if not answer.isdecimal():
        raise UserError(answer)
    listed = _cuda_visible_devices()
    if listed is None:
        listed = [str(number) for number in range(int(answer))]
    elif not any(name.startswith("MIG-") for name in listed):  # of these, one process sees only the first
        listed = listed[: int(answer)]
    return [NumberedCard(number, name) for number, name in enumerate(listed)]


def _cuda_visible_devices() -> list[str] | None:
    """Return the valid names in CUDA_VISIBLE_DEVICES, up to the first invalid one; None if the variable is not set."""
    value = os.environ.get(VARIABLE)
    if value is None:
        return None
    names = [name.strip() for name in value.split(",")]
    ends = [at for at, name in enumerate(names) if name in ("", "-1")]
    return names[: ends[0]] if ends else names


def describe_gpu_count(count: int) -> str:
    """Return a sentence that lists the GPUs' numbers."""
    return "there is one GPU, cuda:0" if count == 1 else f"there are {count} GPUs, cuda:0 to cuda:{count - 1}"


def main() -> None:
    """Run the child process of ``visible_cards``: reply with the number of GPUs, or the reason why there are none."""
    from app.files.child_process import answer_requests

    def reply_device_count(_: bytes) -> bytes:
        try:
            return str(start_driver()).encode()
        except UserError as error:
            return str(error).encode()

    answer_requests(reply_device_count)
