"""Test that every option has a visible effect on each device, or a note that it has none."""

import json
from dataclasses import FrozenInstanceError, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from app.base.errors import UserError
from app.cli import main
from app.commands.parsers import COMMANDS, load_parser, make_request
from app.terminal.console import Parser
from app.terminal.options import add_options, option, options, request_from_values
from data_tools.idx import write_idx
from tests.support.shell import Refuses, check_error, write_good_files

EFFECT, NOTE, ERROR = "effect", "note", "error"
BASE = {"--batch": "3", "--repeat": "2", "--data": "images", "--labels": "labels", "--weights": "weights.h5"}
PARTS = (
    *("settings", "data", "weights", "network", "layers", "accuracy"),
    *("batch", "precision", "device", "compare", "power"),
)
# Option of the main job → its value, and its effects on the CPU and on the GPU: the part of the report that it changes,
# or a pattern for the note or error that says that it has none.
RUN: dict[str, tuple[str, tuple[str, str], tuple[str, str]]] = {
    "--batch": ("2", (EFFECT, "batch"), (EFFECT, "batch")),
    "--device": ("auto", (EFFECT, ""), (EFFECT, "")),
    "--split": ("train", (ERROR, "--split is for Fashion-MNIST: leave it out with --data"), (ERROR, "--split is for")),
    "--data-dir": (".", (ERROR, "--data-dir is for Fashion-MNIST: leave it out"), (ERROR, "--data-dir is for Fashion")),
    "--data": ("others", (EFFECT, "data"), (EFFECT, "data")),
    "--labels": ("none", (EFFECT, "accuracy"), (EFFECT, "accuracy")),
    "--cycle": ("--batch 7", (EFFECT, "batch"), (EFFECT, "batch")),
    "--network": ("k7", (ERROR, "use weights made for"), (ERROR, "use weights made for")),
    "--weights": ("other.h5", (EFFECT, "weights"), (EFFECT, "weights")),
    "--conv": ("direct", (ERROR, "--conv direct chooses a GPU kernel: leave it out on the CPU"), (EFFECT, "layers")),
    "--fc": ("fc1=naive", (ERROR, "--fc fc1=naive chooses a GPU kernel: leave it out on the CPU"), (EFFECT, "layers")),
    "--pool": ("direct --no-fuse", (ERROR, "--pool direct chooses a GPU kernel: leave it"), (EFFECT, "layers")),
    "--latency": ("", (ERROR, "--latency is for the GPU: leave it out on the CPU"), (EFFECT, "layers")),
    "--precision": ("fp16", (ERROR, "--precision fp16 is for the GPU: leave it out on the CPU"), (EFFECT, "precision")),
    "--no-fuse": ("", (NOTE, "--no-fuse: for the GPU, without effect"), (EFFECT, "settings")),
    "--no-sparse": ("", (NOTE, "--no-sparse: for the GPU, without effect"), (EFFECT, "")),  # the weights are dense
    "--streams": ("2", (NOTE, "--streams: for the GPU, without effect"), (EFFECT, "settings")),
    "--chunk": ("2", (NOTE, "--chunk: for the GPU, without effect"), (EFFECT, "settings")),
    "--repeat": ("3", (EFFECT, "settings"), (EFFECT, "settings")),
    "--warmup": ("1", (NOTE, "--warmup: for the GPU, without effect"), (EFFECT, "settings")),
    "--compare": ("fp16", (ERROR, "--compare fp16 is for the GPU: leave it out on the CPU"), (EFFECT, "compare")),
    "--power": ("", (ERROR, "--power is for the GPU: leave it out on the CPU"), (EFFECT, "power")),
    "--recheck": ("", (EFFECT, ""), (EFFECT, "")),  # a user's images are always compared with a new reference
    "--min-accuracy": ("1", (EFFECT, "accuracy"), (EFFECT, "accuracy")),
    "--json": ("-", (EFFECT, ""), (EFFECT, "")),
    "--overwrite": ("", (ERROR, "--overwrite replaces files that are named: name one"), (ERROR, "--overwrite rep")),
    "--wide": ("", (EFFECT, ""), (EFFECT, "")),  # of the text: tests/test_terminal.py
}
BEFORE: dict[str, Any] = {}  # device → its report without the option; all tests have equal files
NO_JOB = {"-h", "--version", "--completion"}
# Options that another option, or the CPU, leaves without effect.
REFUSED = {
    "predict images --invert yes": "--invert is for pictures",
    "predict images --device cpu --precision fp16": "--precision fp16 is for the GPU",
    "predict images --device cpu --no-sparse": "--no-sparse is for the GPU: leave it out on the CPU",
    "evaluate --device cpu --no-sparse": "--no-sparse is for the GPU: leave it out on the CPU",
    "classify images --out results --device cpu --devices all": "--devices all names the GPUs: leave --device cpu out",
    "classify images --out results --device cuda:1 --scheduler tcp://127.0.0.1:1": "--device cuda:1 is a GPU of this",
    "classify images --out results --device cuda --workers 2": "--workers is for the CPU",
    "classify images --out results --device cpu --precision fp16": "--precision fp16 is for the GPU",
    "kernels --arch sm_80": "--arch sm_80 needs --resources",
    "precompile --arch sm_90a --all --precision fp16": "--all compiles every precision",
    "accuracy --device cpu --precision fp16": "--precision is for the GPU",
    "evaluate --device cpu --precision fp16": "--precision fp16 is for the GPU: leave it out on the CPU",
    "evaluate --device cpu --against fp16": "--against fp16 is a precision of the GPU: name another network",
    "evaluate --labels none": "--labels none leaves nothing to judge the answers by: name a file of labels, or",
    "evaluate --overwrite": "--overwrite replaces files that are named: name one, as with --json FILE",
    "predict images --out a.csv --format jsonl": "--format jsonl is for standard output: the ending",
    **{f"predict - {option}": "is not for answers line by line: add --out to read the whole list first" for option in (
        "--format csv", "--show seen.png", "--chunk 2", "--json report.json",
    )},
    "predict images --json -": "--json - prints the report alone: name a file for the answers with --out FILE",
    "train --device cuda:1 --workers 2": "--device cuda:1 is one GPU, and --workers 2 need one each: use --device cuda",
    "precompile --arch sm_90a --device cuda:1": "argument --device: not allowed with argument --arch",
    "bench --device cpu": "argument --device: 'cpu' is none of cuda, cuda:N",
    "bench --precision fp32": "--precision needs --peers",
    "bench --rounds 3": "--rounds needs --peers",
    "bench --search": "--search needs --peers",
    "bench --peers --search --rounds 3": "--rounds is for comparing: leave it out with --search",
    **{f"bench --peers {option}": f"{option.split()[0]} is for timing kernels" for option in (
        "--shape 3,9,9,2,5,1", "--l2 warm", "--noise 0.1", "--plot plots", "--save-tuning",
    )},
    **{f"sweep --pipeline {option}": "leave --set, --layer and --fused out" for option in (
        "--set TILE=8", "--layer conv1", "--fused",
    )},
}  # fmt: skip


def test_every_option_of_the_main_job_has_an_entry() -> None:
    actions = load_parser("run")._actions
    assert {one.option_strings[0] for one in actions if one.option_strings} - NO_JOB == set(RUN)


@pytest.fixture
def two_sets_of_files(workdir: Path) -> None:
    """Write images, labels and weights, and a second file of images and of weights."""
    write_good_files(workdir)
    (workdir / "weights.h5").rename(workdir / "other.h5")
    write_good_files(workdir)
    write_idx(workdir / "others", np.zeros((3, 28, 28), np.uint8))


def run_main_job(arguments: dict[str, str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    """Run the main job; return exit code, report (None if there is none) and errors. arguments: option → values."""
    words = [word for option, value in arguments.items() for word in (option, *value.split())]
    code = main([*words, "--json", "-"] if "--json" not in arguments else words)
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else None, err


@pytest.mark.parametrize("option", RUN)
@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_an_option_does(
    option: str, where: str, two_sets_of_files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    if (option, where) == ("--power", "cuda"):
        pytest.importorskip("pynvml", reason="nvidia-ml-py (the power extra) is not installed")
    given, on_cpu, on_gpu = RUN[option]
    kind, expected = on_cpu if where == "cpu" else on_gpu
    base = BASE | {"--device": where}
    changed = base | ({"--batch": "7", option: ""} if option == "--cycle" else {option: given})
    code, found, err = run_main_job(changed, capsys)
    if kind == ERROR:
        check_error(code, "", err, expected)
        return
    assert code in (0, 1), err
    if kind == NOTE:
        assert any(expected in note for note in found["notes"])
        return
    if where not in BEFORE:
        BEFORE[where] = run_main_job(base, capsys)[1]
    before = BEFORE[where]
    differs = {part for part in PARTS if comparable(found[part]) != comparable(before[part])}
    assert not expected or expected in differs, differs


def comparable(part: Any) -> Any:
    """Return a part of the report without times, which differ from run to run."""
    return [(layer["name"], layer["kernel"]) for layer in part] if isinstance(part, list) else part


@pytest.mark.parametrize(("command", "wrong"), REFUSED.items())
def test_options_that_another_leaves_without_effect(
    command: str, wrong: str, two_sets_of_files: None, refuses: Refuses
) -> None:
    refuses(command, wrong)


# --- Requests: from a frozen dataclass's fields to options, and back to the request


@dataclass(frozen=True, kw_only=True)
class Inner:
    """Example of a group of options."""

    depth: int = option("how deep {what} is", 3, type=int, once="--colour")
    fuse: bool = option("keep {what} apart", True, name="--no-fuse")


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Example of a request: the options of a command."""

    file_name: Path | None = option("a file")
    inner: Inner = options("the hole", what="the hole")
    red: bool = option("paint it red", False, group="colours", exclusive=True)
    blue: bool = option("paint it blue", False, exclusive=True)


def example_parser() -> Parser:
    made = Parser(prog="dig")
    add_options(made, Outer)
    return made


def parse_request(line: str) -> Outer:
    return request_from_values(Outer, vars(example_parser().parse_args(line.split())))


def test_options_become_the_fields_of_a_request() -> None:
    assert parse_request("") == Outer(file_name=None, inner=Inner(depth=3, fuse=True), red=False, blue=False)
    assert parse_request("--file-name a --depth 5 --no-fuse --blue") == Outer(
        file_name=Path("a"), inner=Inner(depth=5, fuse=False), red=False, blue=True
    )
    with pytest.raises(UserError, match="not allowed with argument --red"):
        parse_request("--red --blue")


def test_an_earlier_spelling_works_and_is_not_shown() -> None:
    assert parse_request("--colour 7").inner.depth == 7 == parse_request("--depth 7").inner.depth
    assert "--colour" not in example_parser().format_help()
    with pytest.raises(UserError, match="argument --depth: given twice"):
        parse_request("--colour 7 --depth 7")


@pytest.mark.parametrize(
    ("command", "earlier", "name"),
    [("train", "--output", "--out"), ("train", "--batch", "--batch-size"), ("predict", "--batch", "--chunk")],
)
def test_one_name_means_one_thing(command: str, earlier: str, name: str) -> None:
    """--out names what a command writes, --batch a number of images; earlier names of these options still work."""
    actions = load_parser(command)._option_string_actions
    assert actions[earlier] is actions[name] and actions[name].option_strings == [name]


def test_help_has_groups_and_replaced_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = example_parser().format_help().partition("options:")[2]
    assert "how deep the hole is" in text and "--file-name FILE" in text
    places = [text.index(word) for word in ("the hole:", "--depth", "--no-fuse", "colours:", "--red")]
    assert places == sorted(places)


@pytest.mark.parametrize("name", [*COMMANDS, "run"])
def test_every_command_has_a_frozen_request_that_its_types_describe(name: str) -> None:
    needed = {
        "predict": ["photo.png"],
        "check": ["--conv", "direct"],
        "classify": ["images.npy", "--out", "labels"],
        "compare": ["before.json", "after.json"],
        "import": ["weights.bin", "--out", "weights.h5"],
        "export": ["--out", "model.onnx"],
        "rank": ["records"],
    }
    line = {"sweep": ["--pipeline"], **needed}.get(name, [])
    check_field_types(make_request(name, load_parser(name).parse_args(line)))


def check_field_types(request: object) -> None:
    hints = get_type_hints(type(request))
    for one in fields(request):  # type: ignore[arg-type]
        value = getattr(request, one.name)
        with pytest.raises(FrozenInstanceError):
            setattr(request, one.name, value)
        either = get_args(hints[one.name]) if isinstance(hints[one.name], UnionType) else (hints[one.name],)
        kinds = [get_origin(kind) or kind for kind in either]
        assert isinstance(value, tuple(kinds)), one.name
        if hasattr(value, "__dataclass_fields__"):
            check_field_types(value)
