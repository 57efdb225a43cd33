"""Choose cards by number: ``--device cuda:N`` for one process, ``--devices all|0,2`` for one process per card.

The numbers are CUDA's, among the cards that CUDA_VISIBLE_DEVICES shows. To choose a card, CUDA_VISIBLE_DEVICES names it
alone before the driver starts. All threads, child processes and NVML then mean the same card.
"""

import ctypes
import os
import re
from collections.abc import Collection
from dataclasses import dataclass

from app.base.errors import UserError, suggestion
from app.base.processes import how_it_ended
from app.files.checks import BadValueError, shown
from app.files.child_process import Child, answer_requests

VARIABLE = "CUDA_VISIBLE_DEVICES"
ALL = "all"
NOT_STARTED = 3  # CUDA_ERROR_NOT_INITIALIZED
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
DEVICES = ("auto", "cuda", "cuda:N", "cpu")
_NUMBERED = re.compile("cuda:(0|[1-9][0-9]{0,3})")
_shown: list["NumberedCard"] = []  # the card that ``show`` has chosen, if any


@dataclass(frozen=True)
class NumberedCard:
    """The card that ``cuda:N`` names here. visible: the CUDA_VISIBLE_DEVICES of a process that shall see only it."""

    number: int
    visible: str

    def __str__(self) -> str:
        return f"cuda:{self.number}"

    def show(self) -> None:
        """Show this process only this card. Raises UserError if CUDA has started: it would look no more."""
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


def device_name(text: str, known: Collection[str] = DEVICES) -> str:
    """Return ``text`` if it is one of the ``known`` names of devices. Raises BadValueError."""
    kind = "cuda:N" if _NUMBERED.fullmatch(text) else text
    if kind in known and text != "cuda:N":
        return text
    raise BadValueError(f"{shown(text)} is none of {', '.join(known)}{suggestion(text, known)}")


def number_of(device: str) -> int | None:
    """Return the number in ``cuda:N``, None for other names of devices."""
    number = device.partition(":")[2]
    return int(number) if number else None


def chosen_number(current: int) -> int:
    """Return the number that the user knows the card by that CUDA calls ``current`` in this process."""
    return _shown[0].number if _shown else current


def start_driver() -> int:
    """Start the driver in this process and return how many cards it sees, at least 1. Raises UserError if none."""
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


def select(device: str) -> str:
    """Return ``device`` without the number of ``cuda:N``, and show this process only that card. Raises UserError.

    Call it before CUDA starts. It starts the driver if there is a number.
    """
    number = number_of(device)
    if number is None:
        return device
    before, listed, reason = os.environ.get(VARIABLE), _listed(), ""
    try:
        if listed is None or number < len(listed):
            NumberedCard(number, str(number) if listed is None else listed[number]).show()
            start_driver()
            return device.partition(":")[0]
    except UserError as error:
        reason = str(error)
        _shown.clear()
        os.environ.pop(VARIABLE, None)
        os.environ |= {} if before is None else {VARIABLE: before}
    try:
        cards = visible_cards()
    except UserError as error:
        reason = f"{error}; use --device cpu, or auto to use a GPU only if there is one"
    else:
        reason = reason if number < len(cards) else there_are(len(cards))
    raise UserError(f"--device {device}: {reason}")


def devices_of(text: str) -> list[NumberedCard]:
    """Return the cards that ``--devices`` names: ``all``, or numbers as in ``0,2``. Does not start the driver here.

    Raises UserError for anything else, for a card named twice, and for a card that is not there.
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
        raise UserError(f"--devices {text}: no cuda:{max(numbers)}, {there_are(len(cards))}")
    return [cards[number] for number in numbers] or cards


def visible_cards() -> list[NumberedCard]:
    """Return all cards that CUDA sees, at least one, by asking the driver in another process. Raises UserError."""
    with Child(__name__) as process:
        answer = process.ask(b"").decode()
        if not answer:
            raise UserError(f"the NVIDIA driver does not start: its process {how_it_ended(process.exit_code())}")
    if not answer.isdecimal():
        raise UserError(answer)
    listed = _listed()
    if listed is None:
        listed = [str(number) for number in range(int(answer))]
    elif not any(name.startswith("MIG-") for name in listed):  # of these, one process sees only the first
        listed = listed[: int(answer)]
    return [NumberedCard(number, name) for number, name in enumerate(listed)]


def _listed() -> list[str] | None:
    """Return the names of cards in CUDA_VISIBLE_DEVICES, to the first that ends the list; None if it is not set."""
    value = os.environ.get(VARIABLE)
    if value is None:
        return None
    names = [name.strip() for name in value.split(",")]
    ends = [at for at, name in enumerate(names) if name in ("", "-1")]
    return names[: ends[0]] if ends else names


def there_are(count: int) -> str:
    """Say which cards there are."""
    return "there is one GPU, cuda:0" if count == 1 else f"there are {count} GPUs, cuda:0 to cuda:{count - 1}"


def main() -> None:
    """Answer how many cards the driver sees, or why it sees none: the process of ``visible_cards``."""

    def answer(_: bytes) -> bytes:
        try:
            return str(start_driver()).encode()
        except UserError as error:
            return str(error).encode()

    answer_requests(answer)
