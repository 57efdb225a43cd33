"""NVRTC in a process of its own, which ``compiler_process`` starts.

While it compiles, NVRTC replaces the whole process's handlers of SIGINT and SIGTERM: Ctrl-C ended our process at once
or in a crash. The process imports next to nothing.
"""

import ctypes
import marshal
import os
import socket
from contextlib import suppress
from typing import Any

DONE = b"done"  # what the process says when its answer is in the file; otherwise it says why there is none


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
    """Answer requests until the asking process closes the socket, which is standard input, or ends.

    Each brings a file with the arguments of ``compiled``, which its result replaces.
    """
    nvrtc = ctypes.CDLL(library)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    link = socket.socket(fileno=0)
    with suppress(ConnectionError):  # the asking process has ended
        while descriptors := socket.recv_fds(link, 64, 1)[1]:
            with os.fdopen(descriptors[0], "r+b") as file:
                file.seek(0)  # both processes have one position
                request = marshal.loads(file.read())
                try:
                    answer, said = marshal.dumps(compiled(nvrtc, *request)), DONE
                except RuntimeError as error:
                    answer, said = b"", str(error).encode()
                file.seek(0)
                file.write(answer)
            link.send(said)
