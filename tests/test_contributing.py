"""Test that a new kernel, activation and network touch only the documented files, in one copy of the tree."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.cuda.compiler import compile_kernel
from app.kernels.plain_problems import ActivationProblem
from app.kernels.registry import variants
from app.kernels.train.train import FOLDER
from tests.kernels.test_add_a_variant import SOURCE
from tests.support.networks_for_tests import layers_toml

ROOT = Path(__file__).parents[1]
FOLDERS = ("app", "data_tools", "tests")
KINDS, NAMES = "app/layers/activation.py", "app/layers/__init__.py"
STRUCTS, SLOPES = "app/kernels/include/activations.cuh", "app/training/gradients.py"
ORACLE, EXPORT = "tests/support/network_oracle.py", "app/interchange/onnx_export.py"
ROWS = "app/kernels/conv/rows/direct.py"
NETWORK, KERNEL = "app/network/builtin/soft.toml", "app/kernels/conv/conv_99_my_own.cu"
# File → (old text, new text), to add the activation Softsign and a kernel's row.
EDITS: dict[str, list[tuple[str, str]]] = {
    KINDS: [
        (
            "class Tanh(",
            '''class Softsign(Activation):
    """y = x / (1 + |x|)."""

    kind: ClassVar[str] = "softsign"

    def reference(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Compute y in place."""
        return np.divide(x, 1 + np.abs(x), out=x)


class Tanh(''',
        ),
        ("LeakyRelu, Tanh, Sigmoid)}", "LeakyRelu, Tanh, Sigmoid, Softsign)}"),
    ],
    NAMES: [("Sigmoid, Tanh", "Sigmoid, Softsign, Tanh"), ('    "Softmax",\n', '    "Softmax",\n    "Softsign",\n')],
    STRUCTS: [
        (
            "struct TANH {",
            """struct SOFTSIGN {
    template <typename T>
    static __device__ __forceinline__ T of(T x) { return x / (T(1) + (x < T(0) ? -x : x)); }
    static __device__ __forceinline__ float times_slope(float dy, float y) { return (1 - abs(y)) * (1 - abs(y)) * dy; }
};

struct TANH {""",
        )
    ],
    ROWS: [
        (
            "ROWS: tuple[Variant, ...] = (\n",
            """ROWS: tuple[Variant, ...] = (
    Variant(
        "conv",
        99,
        "my_own",
        summary="the plainest that can be written",
        system="this test",
        dtypes=FLOATS,
        configure=lambda problem, _: LaunchConfig(
            type_defines(problem) | conv_size_defines(problem),
            (KernelLaunch(BLOCK, _pixel_grid(problem, problem.maps)),),
        ),
    ),
""",
        )
    ],
    ORACLE: [
        (
            '        case "tanh":\n',
            '        case "softsign":\n            return x / (1 + np.abs(x))\n        case "tanh":\n',
        )
    ],
    EXPORT: [('OPERATORS = {"relu": "Relu", ', 'OPERATORS = {"relu": "Relu", "softsign": "Softsign", ')],
    SLOPES: [
        ("Sigmoid, Tanh", "Sigmoid, Softsign, Tanh"),
        ("    Tanh: ", "    Softsign: lambda _, y: (1 - np.abs(y)) ** 2,\n    Tanh: "),
    ],
}
# A network with Softsign behind each kind of layer.
SOFT = "input = [1, 28, 28]\n" + layers_toml(
    *("conv2d maps=4 kernel=5", "softsign", "avgpool window=2", "softsign", "flatten"),
    *("linear outputs=12", "softsign", "linear outputs=10"),
)
# Tests for the copy: the activation, known by name alone, is planned, fused, and compiled in all kernels of a plan and
# a training; the kernel is chosen by its name.
CHECK_NAME = "test_softsign.py"
CHECK = """
from app.cuda.compiler import compile_kernel
from app.kernels.problems import ActivationProblem
from app.kernels.registry import find_variant, variants
from app.kernels.train.train import FOLDER
from app.layers import ACTIVATIONS
from app.network.definitions import LENET5, NETWORKS
from app.planning.matching import Choices
from app.planning.plan import plan
from tests.support.networks_for_tests import random_graph

def test_the_activation():
    assert "softsign" in ACTIVATIONS
    nodes = plan(random_graph(NETWORKS["soft"]), "sm_90a").nodes
    assert [node.name for node in nodes] == [
        "conv1+softsign1+pool1", "softsign2", "flatten+fc1+softsign3", "fc2+argmax"
    ], nodes
    row, problem = variants("activation")[0], ActivationProblem(77, "softsign")
    compile_kernel(row.path, row.launch_config(problem).defines, "sm_90a")
    compile_kernel(FOLDER / "train_activation_gradient.cu", {"SIZE": 77, "ACTIVATION": "SOFTSIGN"}, "sm_90a")
    for node in nodes:
        if "soft" in node.name:
            compile_kernel(node.variant.path, node.variant.launch_config(node.problem).defines, "sm_90a")

def test_the_kernel():
    own = find_variant("conv", "my-own")
    head = plan(random_graph(LENET5), "sm_90a", Choices(kernels={"conv": own})).nodes[0]
    assert head.variant is own
    compile_kernel(own.path, own.launch_config(head.problem).defines, "sm_90a")
"""
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
TESTS = ["tests/layers/test_layers.py", "tests/layers/test_layer_rules.py", "tests/layers/test_gradients.py"]
CARD = ["tests/kernels/test_gpu_kernels.py", "tests/training/test_gpu_training_kernels.py"]


def listed_files(title: str) -> set[str]:
    """Return the files to which the section ``title`` links, as paths from the root."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {title}\n(.*?)(?:^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return set(re.findall(r"\]\(([^)]+)\)", section))


def copy_tree(place: Path) -> Path:
    """Copy the application and its tests into the folder; return the folder."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def run_python(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the copy, with a separate compile cache and without the environment of the running pytest."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**own, "LENET_CACHE_DIR": str(place / "cache"), "PYTHONPATH": str(place)}
    command = [sys.executable, "-B", *arguments]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=600)


def changed_files(copy: Path) -> set[str]:
    """Return the files in a copy of the tree that are new or differ from the original, without caches."""
    paths = (path for folder in FOLDERS for path in (copy / folder).rglob("*") if path.is_file())
    names = {path.relative_to(copy).as_posix() for path in paths if "__pycache__" not in path.parts}
    return {
        name for name in names if not (ROOT / name).exists() or (ROOT / name).read_bytes() != (copy / name).read_bytes()
    }


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree with the edits, the network and the kernel."""
    place = copy_tree(tmp_path_factory.mktemp("copy"))
    shutil.copy(ROOT / "pyproject.toml", place)
    for name, edits in EDITS.items():
        text = (place / name).read_text(encoding="utf-8")
        for old, new in edits:
            assert text.count(old) == 1, f"{name}: {old}"
            text = text.replace(old, new)
        (place / name).write_text(text, encoding="utf-8")
    (place / NETWORK).write_text(SOFT, encoding="utf-8")
    (place / KERNEL).write_text(SOURCE, encoding="utf-8")
    return place


def test_the_document_lists_the_changed_files(copy: Path) -> None:
    """Each section links to exactly the files that its change needs."""
    assert changed_files(copy) == {*EDITS, NETWORK, KERNEL}
    assert listed_files("Add a kernel, a step of the ladder") == {ROWS}
    assert set(EDITS) - {ROWS} == listed_files("Add an activation")
    assert {str(Path(NETWORK).parent)} == listed_files("Add a network")


def test_the_copy_compiles_and_plans_and_its_tests_include_the_activation(copy: Path) -> None:
    """The tests of layers, fusing and gradients find the activation by themselves."""
    (copy / CHECK_NAME).write_text(CHECK, encoding="utf-8")
    done = run_python(copy, *PYTEST, "-k", "softsign or Softsign", CHECK_NAME, *TESTS)
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= 8 + CHECK.count("def test_")


@pytest.mark.gpu
def test_gpu_kernels_with_the_activation_equal_the_reference(copy: Path, request: pytest.FixtureRequest) -> None:
    """All shapes are tested, or the sample of this run. test_add_a_variant.py runs the new kernel."""
    seed = request.config.getoption("sample")
    sample = [] if seed is None else ["--sample", str(seed)]
    done = run_python(copy, *PYTEST, *sample, "-k", "softsign and not conv_99", *CARD)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout


def test_an_unknown_activation_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path))
    row = variants("activation")[0]
    unknown = row.launch_config(ActivationProblem(77, "unheard_of")).defines
    slope: dict[str, str | int] = {"SIZE": 77, "ACTIVATION": "UNHEARD_OF"}
    for path, defines in ((row.path, unknown), (FOLDER / "train_activation_gradient.cu", slope)):
        with pytest.raises(RuntimeError, match="UNHEARD_OF"):
            compile_kernel(path, defines, "sm_90a")
