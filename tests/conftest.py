"""Fixtures for all tests. Without a GPU, tests marked ``gpu`` are skipped with the reason."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from multiprocessing import active_children
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

# The CPU route runs chunks in parallel, so the matrix library gets one thread, as in main.py.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("LENET_CPU_ENGINE", "numpy")  # the reference; the tests pass with onnxruntime, too
os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")  # JAX gives device memory back to the other processes

from app.cuda.device import why_no_gpu
from app.files import hdf5_process, hdf5_start
from app.files.hdf5_process import Reader
from app.ladder.emulation import program
from app.network import weights
from app.network.definitions import Network
from tests.support.bundle_for_tests import bundled, release
from tests.support.host_kernels import BUILDS, compile_shared
from tests.support.outside import Outside, fashion_mnist_folder, first_hundred_alone, secluded
from tests.support.sampling import HEADER, chosen, part_of, worker_count
from tests.support.shell import Refuses, check_error, listing
from tests.support.tiny_fashion import cache
from tests.support.training_for_tests import Refused, Train, last_of_each, write_images

__all__ = ["bundled", "cache", "release"]  # fixtures, too

# Child processes inherit ignored signals, and tests send them: a shell's & ignores SIGINT, nohup ignores SIGHUP.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# On a busy machine drawing examples is slow; no test should fail for that.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose among the tests; without them all run, in their short form."""
    parser.addoption("--sample", type=int, metavar="SEED", help="of large grids run a sample")
    parser.addoption("--long", action="store_true", help="every architecture of a kernel, more broken files and photos")
    parser.addoption("--part", type=part_of, default=(1, 1), metavar="K/N", help="run one part of N (make test-all)")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return a line with the seed of the sample, so that it can be repeated; None without a sample."""
    seed = config.getoption("sample")
    return None if seed is None else HEADER.format(seed)


@pytest.fixture(scope="session")
def long_form(request: pytest.FixtureRequest) -> bool:
    """Return whether tests with a short and a long form run the long one (make test-all, or --long)."""
    return bool(request.config.getoption("--long"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of processes for ``-n auto``, which also depends on the GPU's memory."""
    return worker_count()


def pytest_configure(config: pytest.Config) -> None:
    """Set the usual umask, since others must not be able to write to caches, and make a folder for g++ builds."""
    os.umask(0o022)
    if not hasattr(config, "workerinput"):
        folder = TemporaryDirectory(prefix="lenet5-builds-")
        os.environ[BUILDS] = folder.name
        config.add_cleanup(folder.cleanup)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let each worker import the test files in another order, so that each file is compiled once and not by all.

    Turn garbage collection off meanwhile: visiting thousands of tests repeatedly would take a quarter of the time.
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


def _do_nothing() -> None:
    """Do nothing, in place of all cases of a GPU test where there is no GPU."""


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> pytest.Function | None:
    """Return a single item for all cases of a GPU test where there is no GPU, as all are skipped; otherwise None."""
    if not (isinstance(collector, pytest.Module) and name.startswith("test_") and callable(obj)):
        return None
    marks = [*collector.iter_markers("gpu"), *(mark for mark in getattr(obj, "pytestmark", ()) if mark.name == "gpu")]
    if not marks or why_no_gpu() is None:
        return None
    item = pytest.Function.from_parent(collector, name=name, callobj=_do_nothing)
    item.add_marker(pytest.mark.gpu)
    return item


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the chosen sample and part. Without a GPU, skip GPU tests with the program's reason."""
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

        cupy.cuda.set_allocator(None)  # compute-sanitizer then sees the exact bounds of every array


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, and turn it on again."""
    gc.freeze()
    gc.enable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Return the name of a case: that of a network, or options as written; None if pytest should number it."""
    if isinstance(val, dict) and " at 0x" not in str(val):  # no addresses, which differ between workers
        return str(val)
    return val.name if isinstance(val, Network) else None


_parse_file = lru_cache(32)(weights._parse_file)


def _parse_once(path: Path, content: bytes, pinned: bool) -> weights.Weights:
    """Return a file's weights with arrays of their own; parse a shipped file, which most commands read, only once."""
    found = (_parse_file if pinned else _parse_file.__wrapped__)(path, content, pinned)
    return replace(found, arrays={name: array.copy() for name, array in found.arrays.items()})


@pytest.fixture(scope="session", autouse=True)
def one_reader() -> Iterator[None]:
    """Read all HDF5 files in one process, and parse and compile what many tests share only once: this saves minutes."""
    with Reader() as reader, pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5_process, "Reader", lambda: nullcontext(reader))
        patch.setattr(weights, "_parse_file", _parse_once)
        patch.setattr(hdf5_start, "start_children_early", lambda paths: None)
        patch.setattr(program, "_compile_common_part", compile_shared)
        patch.setattr(program, "SHARED_FROM", 1)
        yield


@pytest.fixture(scope="module", autouse=True)
def freed_device_memory() -> Iterator[None]:
    """Free unused device memory after each test file, as many processes test on one GPU."""
    yield
    if "cupy" in sys.modules and why_no_gpu() is None:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


@pytest.fixture(scope="session")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    """Yield a recorder of attempts to use the network, by this process or one that it starts."""
    found = Outside(tmp_path_factory.mktemp("outside"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment().items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(autouse=True)
def seclusion(outside: Outside, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail every test that tries to use the network, itself or in a child process; hide the user's files from it."""
    images = None
    if request.node.get_closest_marker("fashion_mnist") is not None:
        images = fashion_mnist_folder()
        if images is None:
            pytest.skip("Fashion-MNIST is not here and tests fetch nothing: python -m data_tools fetch")
    with secluded(outside, request.node.get_closest_marker("gpu") is not None, images):
        yield


@pytest.fixture
def refuses(capsys: pytest.CaptureFixture[str]) -> Refuses:
    """Return a function that runs a command, words or one string, which must fail with one line of error."""
    from app.cli import main

    def check(command: str | Sequence[object], pattern: str, program: Callable[[list[str]], int] = main) -> None:
        words = command.split() if isinstance(command, str) else [str(word) for word in command]
        capsys.readouterr()
        check_error(program(words), *capsys.readouterr(), pattern)

    return check


@pytest.fixture
def interrupt_writing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after whose call Ctrl-C comes when half of a text file is written."""

    def interrupted(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text[: len(text) // 2].encode(encoding))
        raise KeyboardInterrupt

    return lambda: monkeypatch.setattr(Path, "write_text", interrupted)


@pytest.fixture
def first_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce Fashion-MNIST to its first hundred test images, everywhere in this process."""
    first_hundred_alone(monkeypatch)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with images and labels to train on."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path)
    return tmp_path


@pytest.fixture
def train(place: Path, capsys: pytest.CaptureFixture[str]) -> Train:
    """Return a function that runs ``train``, usually on the CPU, and returns exit code, output and errors."""
    from app.cli import main

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["train", *last_of_each(["--device", "cpu", *arguments])])
        assert active_children() == []
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def refused(train: Train, place: Path) -> Refused:
    """Return a function that runs ``train`` with wrong options: it must fail in one line and change no file."""

    def check(options: str | Sequence[str], pattern: str) -> None:
        before = listing(place)
        check_error(*train(*(options.split() if isinstance(options, str) else options)), pattern)
        assert listing(place) == before

    return check
