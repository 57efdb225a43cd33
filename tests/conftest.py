"""Fixtures for all tests. Without a GPU, tests marked ``gpu`` are skipped with the reason."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from multiprocessing import active_children
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

# Chunks, not the matrix library, are what the CPU route runs in parallel; as in main.py.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("LENET_CPU_ENGINE", "numpy")  # the reference; the tests pass with onnxruntime, too
os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")  # JAX gives device memory back to the other processes

from app.cuda.device import why_no_gpu
from app.files import hdf5_process, hdf5_start
from app.files.hdf5_process import Reader
from app.ladder.emulation import program
from app.network.definitions import Network
from tests.support.bundle_for_tests import bundled, release
from tests.support.host_kernels import BUILDS, compile_shared
from tests.support.outside import Outside, fashion_mnist_folder, first_hundred_alone, secluded
from tests.support.sampling import HEADER, chosen, part_of, worker_count
from tests.support.shell import Refuses, check_error, listing
from tests.support.tiny_fashion import cache
from tests.support.training_for_tests import Refused, Train, last_of_each, write_images

__all__ = ["bundled", "cache", "release"]  # fixtures, too

# Programs inherit what is ignored, and tests send them both: SIGINT is ignored behind a shell's &, SIGHUP under nohup.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# On a busy machine drawing examples takes its time: that is no fault of a test.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    """What is asked for by hand runs whole; ``make test`` asks for a sample."""
    parser.addoption("--sample", type=int, metavar="SEED", help="of large grids run a sample")
    parser.addoption("--long", action="store_true", help="every architecture of a kernel, more broken files and photos")
    parser.addoption("--part", type=part_of, default=(1, 1), metavar="K/N", help="run one part of N (make test-all)")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the seed, so that a sample can be repeated."""
    seed = config.getoption("sample")
    return None if seed is None else HEADER.format(seed)


@pytest.fixture(scope="session")
def long_form(request: pytest.FixtureRequest) -> bool:
    """Whether tests with a short and a long form run the long one (make test-all, or --long)."""
    return bool(request.config.getoption("--long"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: on a machine with a GPU its memory counts, too."""
    return worker_count()


def pytest_configure(config: pytest.Config) -> None:
    """The usual umask: what tests put into caches by themselves may not be writable by others."""
    os.umask(0o022)
    if not hasattr(config, "workerinput"):
        folder = TemporaryDirectory(prefix="lenet5-builds-")
        os.environ[BUILDS] = folder.name
        config.add_cleanup(folder.cleanup)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Of several processes that collect all tests, each begins elsewhere: each file is compiled once, not by all.

    Thousands of tests stay: walking over them again and again would take a quarter of the time.
    """
    gc.disable()
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    paths = (path.relative_to(session.config.rootpath) for path in Path(__file__).parent.rglob("test_*.py"))
    names = sorted(".".join(path.with_suffix("").parts) for path in paths)
    first = len(names) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for name in names[first:] + names[:first]:
        with suppress(Exception, pytest.skip.Exception):  # collecting raises it again
            import_module(name)


def _cases() -> None:
    """Stands for all cases of a test that needs a GPU, where there is none."""


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> pytest.Function | None:
    """Collect GPU tests by one item each where there is no GPU: nobody needs ten thousand cases that are skipped."""
    if not (isinstance(collector, pytest.Module) and name.startswith("test_") and callable(obj)):
        return None
    marks = [*collector.iter_markers("gpu"), *(mark for mark in getattr(obj, "pytestmark", ()) if mark.name == "gpu")]
    if not marks or why_no_gpu() is None:
        return None
    item = pytest.Function.from_parent(collector, name=name, callobj=_cases)
    item.add_marker(pytest.mark.gpu)
    return item


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the sample and the part that are asked for, of what -m and -k leave.

    Skip GPU tests where there is no GPU, each with the same reason that the program would print.
    """
    kept = chosen(items, config.getoption("sample"), config.getoption("part"))
    names = {item.nodeid for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
    items[:] = kept
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = why_no_gpu() if marked else None
    for item in marked:
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason}"))
    if marked and reason is None and os.environ.get("LENET_NO_POOL"):
        import cupy

        cupy.cuda.set_allocator(None)  # a checker then sees the exact bounds of every array


def pytest_collection_finish() -> None:
    """From here on no garbage collection walks over what was collected."""
    gc.freeze()
    gc.enable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name cases by their network, and by options as they are written; pytest numbers the others."""
    if isinstance(val, dict) and " at 0x" not in str(val):  # an address, which all workers have another of
        return str(val)
    return val.name if isinstance(val, Network) else None


@pytest.fixture(scope="session", autouse=True)
def one_reader() -> Iterator[None]:
    """One process reads the HDF5 files of all tests: to start one for each file would take a minute in all.

    And what g++ compiles for all kernels is compiled once, even for a single one.
    """
    with Reader() as reader, pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5_process, "Reader", lambda: nullcontext(reader))
        patch.setattr(hdf5_start, "start_children_early", lambda paths: None)
        patch.setattr(program, "_compile_common_part", compile_shared)
        patch.setattr(program, "SHARED_FROM", 1)
        yield


@pytest.fixture(scope="module", autouse=True)
def freed_device_memory() -> Iterator[None]:
    """Many processes test on one GPU: none keeps the memory that its tests needed."""
    yield
    if "cupy" in sys.modules and why_no_gpu() is None:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


@pytest.fixture(scope="session")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    """Notes what tries to fetch something, by this process or by one that it starts."""
    found = Outside(tmp_path_factory.mktemp("outside"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment().items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(autouse=True)
def seclusion(outside: Outside, request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test: it fails if it, or a process of its own, tries to fetch anything."""
    images = None
    if request.node.get_closest_marker("fashion_mnist") is not None:
        images = fashion_mnist_folder()
        if images is None:
            pytest.skip("Fashion-MNIST is not here and tests fetch nothing: python -m data_tools fetch")
    with secluded(outside, request.node.get_closest_marker("gpu") is not None, images):
        yield


@pytest.fixture
def refuses(capsys: pytest.CaptureFixture[str]) -> Refuses:
    """Runs a command, given as words or in one string, and checks its exit code and its one line of error."""
    from app.cli import main

    def check(command: str | Sequence[object], pattern: str, program: Callable[[list[str]], int] = main) -> None:
        words = command.split() if isinstance(command, str) else [str(word) for word in command]
        capsys.readouterr()
        check_error(program(words), *capsys.readouterr(), pattern)

    return check


@pytest.fixture
def interrupt_writing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, Ctrl-C comes when half of a text has been written."""

    def interrupted(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text[: len(text) // 2].encode(encoding))
        raise KeyboardInterrupt

    return lambda: monkeypatch.setattr(Path, "write_text", interrupted)


@pytest.fixture
def first_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fashion-MNIST has only its first hundred test images, everywhere in this process."""
    first_hundred_alone(monkeypatch)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with images and labels to train on."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path)
    return tmp_path


@pytest.fixture
def train(place: Path, capsys: pytest.CaptureFixture[str]) -> Train:
    """Runs the command on the CPU unless told otherwise; returns exit code, output and errors. No process is left."""
    from app.cli import main

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["train", *last_of_each(["--device", "cpu", *arguments])])
        assert active_children() == []
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def refused(train: Train, place: Path) -> Refused:
    """Runs the command ``train``, which must refuse with the pattern in its one line, and leave all files as they were.

    Options come as words or in one string.
    """

    def check(options: str | Sequence[str], pattern: str) -> None:
        before = listing(place)
        check_error(*train(*(options.split() if isinstance(options, str) else options)), pattern)
        assert listing(place) == before

    return check
