"""Find facts for ``doctor``: system, packages, environment variables, the cache, Fashion-MNIST and weights."""

import importlib.metadata
import importlib.util
import locale
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from app import VERSION
from app.base.errors import EXTRAS, UserError, pip_install_command
from app.base.processor import core_count
from app.cuda.device import describe_cpu
from app.files import shipped
from app.files.cache import cache_dir, why_untrusted
from app.records.operate import Area, Finding
from app.terminal.text import format_bytes
from app.tools.cache import cache_contents
from data_tools.fashion_mnist import SPLITS, existing_copies, search_dirs

REQUIRED = ("numpy", "h5py", "tqdm", "requests")
FILES: Final = "files"
CUPY = ("cupy-cuda12x", "cupy-cuda13x", "cupy")  # one of them is needed
NEEDED_FOR = {
    "cuda": "compiling kernels without a CUDA toolkit",
    "cpu": "--device cpu at twice NumPy's speed",
    "interchange": "import and export of ONNX and safetensors files",
    "torch": "import of PyTorch's state dicts",
    "pictures": "predict with picture files",
    "parquet": "predict --out FILE.parquet",
    "cluster": "classify on several GPUs, processes or machines",
    "power": "--power, and clocks in doctor",
    "nccl": "train --workers on several GPUs",
    "bench": "the library row of bench",
    "peers": "bench --peers",
    "docs": "python -m docs.generate, make docs and ladder --pages",
}
VARIABLES = (
    *("LENET_CACHE_DIR", "XDG_CACHE_HOME", "FASHION_MNIST_DIR", "LENET_CPU_ENGINE", "LENET_TRACEBACK"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_PATH", "LD_LIBRARY_PATH", "NO_COLOR"),
)


def make_finding(area: Area, name: str, value: str, needed_for: str = "", remedy: str = "") -> Finding:
    """Return a finding. needed_for, remedy: if something is missing, what does not work, and what to do; else empty."""
    return {
        "area": area,
        "name": name,
        "value": value,
        "needed_for": needed_for,
        "remedy": remedy,
        "missing": bool(remedy),
    }


def system_findings() -> Iterator[Finding]:
    """Yield findings about program, operating system, Python, processor and memory."""
    area: Final = "system"
    yield make_finding(area, "program", f"lenet5-inference {VERSION} in {Path(__file__).parents[2]}")
    with suppress(OSError):
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
        yield make_finding(area, "system", f"{name}, {platform.system()} {platform.release()} on {platform.machine()}")
    yield make_finding(
        area, "Python", f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    )
    yield make_finding(area, "processor", f"{describe_cpu(1)['name']}; {core_count()} of {os.cpu_count()} cores usable")
    yield _memory_finding()
    yield make_finding(area, "terminal", f"output as {sys.stdout.encoding}, locale {locale.setlocale(locale.LC_CTYPE)}")


def _memory_finding() -> Finding:
    kilobytes: dict[str, int] = {}
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            kilobytes[name] = int(value.split()[0])
    words = {"MemTotal": "in all", "MemAvailable": "available"}
    told = [f"{format_bytes(1024 * kilobytes[name])} {word}" for name, word in words.items() if name in kilobytes]
    return make_finding("system", "memory", ", ".join(told) or "unknown")


def package_findings() -> Iterator[Finding]:
    """Yield findings about the packages that the program needs, and those of each optional extra."""
    for name in REQUIRED:
        yield _package_finding(name, name, "everything")
    cupy = [name for name in CUPY if _package_version(name)]
    yield _package_finding("cupy", cupy[0] if cupy else CUPY[0], "the GPU")
    for extra, what in NEEDED_FOR.items():
        names = [re.split(r"[\[<>=]", package)[0] for package in EXTRAS[extra]]
        missing = [name for name in names if not _package_version(name)]
        told = ", ".join(f"{name} {_package_version(name) or 'is missing'}" for name in names)
        if missing:
            yield make_finding("extras", extra, told, what, pip_install_command(extra))
        else:
            yield make_finding("extras", extra, told)


def _package_finding(name: str, distribution: str, what: str) -> Finding:
    version = _package_version(distribution)
    if version is None:
        return make_finding("packages", name, "is missing", what, f"pip install {distribution}")
    return make_finding("packages", name, version if name == distribution else f"{version} ({distribution})")


def _package_version(distribution: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def environment_findings() -> Iterator[Finding]:
    """Yield findings about this program's environment variables that are set."""
    for name in VARIABLES:
        if name in os.environ:
            yield make_finding("environment", name, os.environ[name])


def storage_findings() -> Iterator[Finding]:
    """Yield findings about the cache and its permissions, data, weights and bytecode. Writes and fetches nothing."""
    folder = cache_dir()
    yield _cache_finding(folder)
    with suppress(UserError):  # for an unreadable cache: the finding above has the reason
        for about, _ in cache_contents():
            yield make_finding(FILES, about["kind"], f"{about['files']:,} files, {format_bytes(about['bytes'])}")
    for split, files in SPLITS.items():
        where = [place for place in search_dirs(None) if all(existing_copies(file, place) for file in files)]
        if where:
            yield make_finding(FILES, f"{split} images", str(where[0]))
        else:
            needed = {"test": "the main job and accuracy", "train": "train"}[split]
            remedy = f"python -m data_tools fetch --split {split}; the first use fetches it, too"
            yield make_finding(FILES, f"{split} images", "are not here yet", needed, remedy)
    yield _weights_finding()
    yield _bytecode_finding()


def _cache_finding(folder: Path) -> Finding:
    existing = next(place for place in (folder, *folder.parents) if os.access(place, os.F_OK))  # exists() may raise
    reason = why_untrusted(folder / "kernels" / "any.cubin")
    if reason is None and not os.access(existing, os.W_OK | os.X_OK):
        reason = f"{existing} cannot be written to: set LENET_CACHE_DIR to a folder of your own"
    if reason is not None:
        fault, _, remedy = reason.rpartition(": ")
        return make_finding(FILES, "cache", f"{folder}: {fault}", "keeping compiled kernels and data", remedy)
    rights = f"mode {existing.stat().st_mode & 0o7777:o}" if existing == folder else "does not exist yet"
    return make_finding(
        FILES, "cache", f"{folder}, {rights}, {format_bytes(shutil.disk_usage(existing).free)} free there"
    )


def _bytecode_finding() -> Finding:
    """Return whether Python stores bytecode: this module has been imported, so its bytecode file must exist."""
    kept = Path(importlib.util.cache_from_source(__file__))
    if kept.exists():
        return make_finding(FILES, "bytecode", str(kept.parent))
    needed = "starting fast: without it, Python compiles every module at each start"
    if sys.dont_write_bytecode:
        remedy = "unset PYTHONDONTWRITEBYTECODE, and run python without -B"
        return make_finding(FILES, "bytecode", "Python is told to write none", needed, remedy)
    remedy = "set PYTHONPYCACHEPREFIX to a folder that you can write to"
    return make_finding(FILES, "bytecode", f"cannot be written to {kept.parent}", needed, remedy)


def _weights_finding() -> Finding:
    """Return the finding on whether the shipped weights match SHA256SUMS."""
    try:
        names = sorted(shipped.read_checksums(shipped.FOLDER))
        for name in names:
            path = shipped.FOLDER / name
            shipped.check_shipped_hash(path, path.read_bytes())
    except (UserError, OSError) as error:
        return make_finding(FILES, "weights", str(error), "the shipped networks", "git checkout -- weights")
    return make_finding(FILES, "weights", f"{shipped.FOLDER}: {len(names)} files, all as in {shipped.CHECKSUMS}")
