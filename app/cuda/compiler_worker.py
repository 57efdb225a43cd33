"""NVRTC in a process of its own: programs come in on standard input, machine code and logs go out on standard output.

While it compiles, NVRTC replaces the whole process's handlers of SIGINT and SIGTERM: Ctrl-C ended our process at once
or in a crash. ``compiler_process`` starts this file as a script, so it imports next to nothing.
"""

import ctypes
import marshal
import os
import sys
from typing import Any


def compiled(
    nvrtc: Any, name: str, text: str, headers: list[tuple[str, str]], flags: tuple[str, ...]
) -> tuple[str, bytes, str]:
    """Compile a program; return the error's name (empty without an error), machine code and the compiler's log.

    headers: name and text of each included file.
    """
    program = ctypes.c_void_p()
    texts, names = [text.encode() for _, text in headers], [name.encode() for name, _ in headers]
    arrays = ((ctypes.c_char_p * len(headers))(*texts), (ctypes.c_char_p * len(headers))(*names))
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), len(headers), *arrays))
    encoded = [flag.encode() for flag in flags]
    status = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*encoded))
    error = nvrtc.nvrtcGetErrorString(status).decode() if status else ""
    log = _bytes(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
    cubin = b"" if status else _bytes(nvrtc, program, "CUBIN")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return error, cubin, log


def _bytes(nvrtc: Any, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(nvrtc: Any, status: int) -> None:
    if status:
        raise RuntimeError(nvrtc.nvrtcGetErrorString(status).decode())


def main(library: str) -> None:
    """Answer requests (arguments of ``compiled``) until standard input ends."""
    nvrtc = ctypes.CDLL(library)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    while True:
        try:
            request = marshal.load(sys.stdin.buffer)
        except EOFError:
            return
        answer = marshal.dumps(compiled(nvrtc, *request))
        try:
            sys.stdout.buffer.write(answer)
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # the asking process has ended
            os._exit(0)  # Python would try to write the rest at its own end, and print that this failed


if __name__ == "__main__":
    main(sys.argv[1])
