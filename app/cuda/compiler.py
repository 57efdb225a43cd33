"""Compile the ``.cu`` files of app/kernels/ at run time by NVRTC, for any GPU, with a cache on disk.

Compiling needs neither a GPU nor a CUDA toolkit, only the NVRTC library, which the ``cuda`` extra installs.
"""

import ctypes
import hashlib
import os
import re
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from app.base.errors import UserError, pip_install_command
from app.base.frozen import Frozen
from app.files.cache import cache_dir, create_private_folder, is_trusted, why_untrusted
from app.files.reading import read_file
from app.files.writing import replace_atomically

KERNEL_DIR = Path(__file__).parents[1] / "kernels"
CUPY = "cupy-cuda12x"
INCLUDE_DIR = KERNEL_DIR / "include"
# The tests compile every kernel for these architectures; 90a includes Hopper's wgmma instructions.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
MAX_CUBIN_BYTES = 64 << 20  # our largest cubin is smaller than 1 MiB
_ELF_NOTE = 4  # PT_NOTE
_CACHE_FORMAT = b"lenet5-cubin-2\n"


def describe_cupy_error(error: Exception) -> str:
    """Return in one line why CuPy does not load, with a remedy where it cannot make the folder of its own kernels."""
    hint = ": set CUPY_CACHE_DIR to a folder of your own" if isinstance(error, OSError) and error.filename else ""
    return f"CuPy does not load: {' '.join(str(error).split())}{hint}"


def import_nvrtc() -> Any:
    """Return CuPy's low-level NVRTC binding. Call it only when needed: it imports CuPy, which takes 0.4 s."""
    try:
        from cupy_backends.cuda.libs import nvrtc as binding

        binding.getVersion()
    except Exception as error:  # CuPy reports a missing library in several ways
        if isinstance(error, OSError) and error.filename:
            raise UserError(describe_cupy_error(error)) from None
        reason = " ".join(str(error).split()) or type(error).__name__
        remedy = f"pip install {CUPY}" if isinstance(error, ModuleNotFoundError) else pip_install_command("cuda")
        raise UserError(f"NVRTC, the run-time compiler, cannot be loaded ({reason}): {remedy}") from None
    return binding


class NvrtcLibrary(Frozen):
    """The NVRTC library in use. version: (major, minor). build: a hash that identifies the build."""

    path: str
    version: tuple[int, int]
    build: str


def find_nvrtc() -> NvrtcLibrary:
    """Return the NVRTC library that CuPy loads. Raise UserError if it is missing."""
    version = import_nvrtc().getVersion()
    path = _loaded_nvrtc_path(version[0])
    return NvrtcLibrary(path, version, library_build_hash(path))


@cache
def _loaded_nvrtc_path(major: int) -> str:
    library = ctypes.CDLL(f"libnvrtc.so.{major}", mode=os.RTLD_NOLOAD)
    found = (ctypes.c_char_p * 4)()  # Dl_info: four pointers, the first to the file's name
    ctypes.CDLL(None).dladdr(library.nvrtcVersion, found)
    assert found[0] is not None
    return os.path.realpath(os.fsdecode(found[0]))


@cache
def library_build_hash(path: str) -> str:
    """Return a hash that identifies the build of a library (64-bit ELF): of its size and its notes (build ID)."""
    with Path(path).open("rb") as file:
        header = file.read(64)
        (table,) = struct.unpack_from("<Q", header, 0x20)
        size, count = struct.unpack_from("<2H", header, 0x36)
        file.seek(table)
        segments = [file.read(size) for _ in range(count)]
        notes = []
        for segment in segments:
            kind, _, offset, _, _, nbytes = struct.unpack_from("<IIQQQQ", segment)
            if kind == _ELF_NOTE:
                file.seek(offset)
                notes.append(file.read(nbytes))
        return hashlib.sha256(repr((os.fstat(file.fileno()).st_size, notes)).encode()).hexdigest()


def architecture_name(major: int, minor: int) -> str:
    """Return NVRTC's name for the compute capability major.minor, e.g. (8, 0) → ``sm_80``, (9, 0) → ``sm_90a``."""
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def architecture_number(name: str) -> int:
    """Return the number in an architecture's name: 90 for ``sm_90a``. Compare it with ``min_arch`` of kernels."""
    return int(name.removeprefix("sm_").rstrip("abcdef"))


def read_with_includes(path: Path) -> dict[str, str]:
    """Return the text of a file and of all files that it includes, directly or not, by file name.

    Included files are beside the file or in app/kernels/include/.
    """
    found: dict[str, str] = {}
    waiting = [path.name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            beside = path.parent / name
            found[name] = (beside if beside.exists() else INCLUDE_DIR / name).read_text(encoding="utf-8")
            waiting += _INCLUDE.findall(found[name])
    return found


def compile_options(defines: Mapping[str, str | int], arch: str, debug: bool = False) -> tuple[str, ...]:
    """Return NVRTC's options. defines: compile-time constants. arch: such as ``sm_90a``. debug: do not optimise."""
    constants = (f"-D{name}={value}" for name, value in sorted(defines.items()))
    mode = "--device-debug" if debug else "--generate-line-info"
    return (f"--gpu-architecture={arch}", "--std=c++17", mode, *constants)


def compile_kernel(path: Path, defines: Mapping[str, str | int], arch: str, *, debug: bool = False) -> bytes:
    """Return the machine code (a cubin) of a kernel file: from the cache, or compiled.

    path: the ``.cu`` file. defines: compile-time constants. arch: such as ``sm_90a``. debug: without optimisation.
    Raises UserError if NVRTC is missing or the cache cannot be written. A kernel that does not compile is a bug: it
    raises RuntimeError with file, options and the compiler's log.
    """
    library, texts, flags = find_nvrtc(), read_with_includes(path), compile_options(defines, arch, debug)
    cached = _cache_path(library, path, texts, flags)
    cubin = _read_cached_cubin(cached)
    if cubin is None:
        cubin, _ = _compile(library, path.name, texts, flags)
        _write_cached_cubin(cached, cubin)
    return cubin


def is_cached(path: Path, defines: Mapping[str, str | int], arch: str) -> bool:
    """Return whether the cache has undamaged machine code of this kernel. Raises UserError if NVRTC is missing."""
    return (
        _read_cached_cubin(_cache_path(find_nvrtc(), path, read_with_includes(path), compile_options(defines, arch)))
        is not None
    )


def check_cache_permissions() -> None:
    """Raise UserError if other users could replace files in the cache."""
    if (reason := why_untrusted(cache_dir() / "kernels" / "any.cubin")) is not None:
        raise UserError(f"cannot store compiled kernels: {reason}")


def _cache_path(library: NvrtcLibrary, path: Path, texts: Mapping[str, str], flags: tuple[str, ...]) -> Path:
    """Return the path of the cache file for these sources, options and NVRTC build."""
    key = hashlib.sha256(
        repr((library.version, library.build, flags, path.name, sorted(texts.items()))).encode()
    ).hexdigest()
    return cache_dir() / "kernels" / f"{key}.cubin"


def resource_report(path: Path, defines: Mapping[str, str | int], arch: str) -> str:
    """Compile a kernel without the cache; return the assembler's log: registers, shared memory and spills.

    Raises UserError if NVRTC is missing, and RuntimeError if the kernel does not compile.
    """
    library = find_nvrtc()
    uncached = ("--no-cache",) if library.version >= (12, 9) else ()  # NVRTC's cache would give no log
    _, log = _compile(
        library, path.name, read_with_includes(path), (*compile_options(defines, arch), "--ptxas-options=-v", *uncached)
    )
    return log


def _compile(library: NvrtcLibrary, source: str, texts: Mapping[str, str], flags: tuple[str, ...]) -> tuple[bytes, str]:
    from app.cuda.compiler_process import compile_program  # imported only here: most runs find all in the cache

    headers = {name: text for name, text in texts.items() if name != source}
    error, cubin, log = compile_program(library.path, source, texts[source], headers, flags)
    if error == "NVRTC_ERROR_INVALID_OPTION":
        arch = flags[0].partition("=")[2]
        raise UserError(
            f"this NVRTC does not know {arch}: pip install -U nvidia-cuda-nvrtc-cu12 (CUDA 13: nvidia-cuda-nvrtc)"
        )
    if error:
        raise RuntimeError(f"{source} does not compile ({error}) with {' '.join(flags)}\n{log.strip()}")
    return cubin, log


def _read_cached_cubin(path: Path) -> bytes | None:
    """Return machine code from the cache; None if the file is missing, damaged, or writable by another user."""
    if not is_trusted(path):
        return None
    try:
        content = read_file(path, MAX_CUBIN_BYTES)
    except UserError:
        return None
    header_length = len(_CACHE_FORMAT) + 32
    header, cubin = content[:header_length], content[header_length:]
    return cubin if header == _CACHE_FORMAT + hashlib.sha256(cubin).digest() else None


def _write_cached_cubin(path: Path, cubin: bytes) -> None:
    """Write machine code under a temporary name and rename it, so that no process reads an incomplete file."""
    try:
        create_private_folder(path.parent)
        if is_trusted(path):
            with replace_atomically(path) as temporary:
                temporary.write_bytes(_CACHE_FORMAT + hashlib.sha256(cubin).digest() + cubin)
                temporary.chmod(0o600)
    except (OSError, UserError) as error:
        cause = error.__cause__ if isinstance(error, UserError) else error
        reason = getattr(cause, "strerror", None) or cause
        raise UserError(
            f"cannot write the kernel cache {path.parent} ({path.name}: {reason}): delete what is in the way, "
            "or set LENET_CACHE_DIR to a folder that you can write to"
        ) from None
