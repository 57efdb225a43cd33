"""Run NVRTC in child processes, many at once, so that any thread can compile and Ctrl-C interrupts it.

NVRTC replaces the process's handlers of SIGINT and SIGTERM while it compiles; Ctrl-C then ends or crashes the whole
program. Blocking the signals does not help, because other threads still receive them.
"""

import atexit
import ctypes
import marshal
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tqdm import tqdm

from app.base.errors import UserError
from app.base.interrupts import deferred_interrupts
from app.base.processes import limit_resource
from app.base.processor import core_count
from app.files.child_process import Child, answer_requests

SECONDS = 100  # of CPU time for one kernel; ours take the compiler up to 10
_idle: list[Child] = []  # idle processes; list operations are atomic, so threads need no lock


def compile_program(
    library: str, name: str, text: str, headers: Mapping[str, str], flags: tuple[str, ...]
) -> tuple[str, bytes, str]:
    """Compile a program in a child process; return the error's name ("" if none), the machine code and the log.

    library: path of NVRTC. name, text: of the program's file. headers: name → text of each included file. Raises
    UserError if the system lacks processes or memory, and RuntimeError if NVRTC crashes or takes too long.
    """
    try:
        process = _idle.pop()
    except IndexError:
        process = Child(__name__, library, one_thread=False)
    try:
        answer = process.send_request(marshal.dumps((name, text, list(headers.items()), flags)))
        if not answer:
            raise _compiler_exit_error(name, process.exit_code())
        found: tuple[str, bytes, str] = marshal.loads(answer)
    except BaseException:
        process.kill()
        raise
    _idle.append(process)
    return found


def _compiler_exit_error(name: str, code: int | None) -> Exception:
    if code == -signal.SIGXCPU:
        return RuntimeError(f"{name} takes the compiler more than {SECONDS} s")
    if code == -signal.SIGKILL:
        return UserError(f"the compiler was killed at {name}, perhaps out of memory: free some, and try again")
    return RuntimeError(f"the compiler ended with code {code} at {name}")


@atexit.register
def _terminate_idle_compilers() -> None:
    while _idle:
        _idle.pop().kill()


def main(library: str) -> None:
    """Run the child process: compile what the parent requests, until the parent ends. library: path of NVRTC."""
    nvrtc = ctypes.CDLL(library)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p

    def compile_request(request: bytes) -> bytes:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit_resource(resource.RLIMIT_CPU, SECONDS + int(used.ru_utime + used.ru_stime))
        try:
            return marshal.dumps(_compile_in_process(nvrtc, *marshal.loads(request)))
        except RuntimeError as error:
            return marshal.dumps((str(error), b"", ""))

    answer_requests(compile_request)


def _compile_in_process(
    nvrtc: Any, name: str, text: str, headers: list[tuple[str, str]], flags: tuple[str, ...]
) -> tuple[str, bytes, str]:
    """Compile in this process; return what ``compile_program`` returns. headers: (name, text) of included files."""
    program = ctypes.c_void_p()
    texts, names = [text.encode() for _, text in headers], [name.encode() for name, _ in headers]
    arrays = ((ctypes.c_char_p * len(headers))(*texts), (ctypes.c_char_p * len(headers))(*names))
    _check_status(
        nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), len(headers), *arrays)
    )
    encoded = [flag.encode() for flag in flags]
    status = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*encoded))
    error = nvrtc.nvrtcGetErrorString(status).decode() if status else ""
    log = _read_program_output(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
    cubin = b"" if status else _read_program_output(nvrtc, program, "CUBIN")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return error, cubin, log


def _read_program_output(nvrtc: Any, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check_status(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check_status(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check_status(nvrtc: Any, status: int) -> None:
    if status:
        raise RuntimeError(nvrtc.nvrtcGetErrorString(status).decode())


Item = TypeVar("Item")
Result = TypeVar("Result")


def compile_on_all_cores(compile_one: Callable[[Item], Result], items: Sequence[Item], title: str) -> list[Result]:
    """Return ``compile_one(item)`` for each item, in order, computed by one thread per core; show a progress bar.

    If one call raises, or the user interrupts, calls that have not begun are cancelled and the exception is raised.
    """
    with deferred_interrupts() as check_interrupt, ThreadPoolExecutor(core_count()) as pool:

        def compile_item(item: Item) -> Result:
            check_interrupt()
            return compile_one(item)

        done = pool.map(compile_item, items)
        return [*tqdm(done, desc=title, total=len(items), unit=" kernels", disable=None)]
