"""Compile in separate processes (see ``compiler_worker``): safe from any thread, and Ctrl-C interrupts it."""

import atexit
import marshal
import signal
from collections.abc import Mapping

from app.cuda import compiler_worker
from app.errors import UserError
from app.files.child_process import Child, memory_file

_idle: list[Child] = []  # threads take and return items by single, atomic list operations


def compile_program(
    library: str, name: str, text: str, headers: Mapping[str, str], flags: tuple[str, ...]
) -> tuple[str, bytes, str]:
    """Compile a program; return the error's name (empty without an error), machine code and the compiler's log.

    library: NVRTC's file. headers: texts by name. Raises UserError where there is no process or memory for it,
    RuntimeError if NVRTC crashes.
    """
    try:
        with memory_file(marshal.dumps((name, text, list(headers.items()), flags))) as file:
            try:
                process = _idle.pop()
            except IndexError:
                process = Child(compiler_worker.__name__, library, one_thread=False)
            try:
                process.send(b"compile", [file])
                if (said := process.receive()) != compiler_worker.DONE:
                    raise _failure(name, said, process)
                file.seek(0)
                answer = marshal.loads(file.read())
            except BaseException:
                process.end()
                raise
    except OSError as error:
        raise UserError(f"cannot run the compiler's process ({error.strerror or error}): end other programs") from None
    _idle.append(process)
    return answer


def _failure(name: str, said: bytes, process: Child) -> Exception:
    if said:
        return RuntimeError(f"the compiler fails at {name}: {said.decode(errors='replace')}")
    code = process.exit_code()
    if code == -signal.SIGKILL:
        return UserError(f"the compiler was killed at {name}, perhaps out of memory: free some, and try again")
    return RuntimeError(f"the compiler ended with code {code} at {name}")


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()
