"""Test mistakes in commands, options and the names of kernels and networks: exit code 2 and an error of one line."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import COMMANDS, main
from app.cuda.compiler import ARCHITECTURES
from app.files.cache import cache_dir
from app.files.shipped import find_shipped_weights
from app.lab.checking.cases import SIZES
from data_tools.__main__ import main as data_tools
from tests.support.outside import Outside
from tests.support.shell import Refuses, in_a_shell, listing, write_good_files

# Command → its error; the command that prints help follows in each.
USAGE = {
    "--batch 0": "--batch: 0 is not between 1 and 1,000,000,000,000",
    "--batch 1e4": "--batch: '1e4' is not a whole number",
    "--batch '1\n2'": "--batch: '1 2' is not a whole number",
    "--batch": "--batch: expected one argument",
    f"--batch {10**13}": f"--batch: {10**13} is not between",
    "--chunk 0": "--chunk: 0 is not between 1",
    "--streams 0": "--streams: 0 is not between 1 and 64",
    "--repeat 0": "--repeat: 0 is not between 1",
    "--warmup -1": "--warmup: -1 is not between 0",
    "--device tpu": "--device: 'tpu' is none of auto, cuda, cuda:N, cpu; did you mean cpu",
    "--split validation": "--split: invalid choice: 'validation' .*test",
    "--frobnicate": "unrecognized arguments: --frobnicate",
    "--bat 5": "unrecognized arguments: --bat 5; did you mean --batch",
    "--batch 5 graph": "unrecognized arguments: graph",
    "--data a --data b": "--data: given twice; give one file; several are for: python main.py classify FILE FILE --out",
    "train --data a --data b": "--data: given twice; give it once",
    "--bat=5": "unrecognized arguments: --bat=5; did you mean --batch",
    "-batch 5": "unrecognized arguments: -batch 5; did you mean --batch",
    "train --optimiser adam": "invalid choice: 'adam' .*; did you mean adamw",
    "tarin": "unknown command 'tarin': .*; did you mean train",
    "zzz": "unknown command 'zzz': there are predict",
    "Bench": "unknown command 'Bench': .*; did you mean bench",
    "predict --top 3": "the following arguments are required: PATH",
    "predict a.png --top 0": "--top: 0 is not between 1",
    "predict a.png --min-confidence 1.1": "--min-confidence: 1.1 is not at least 0 and at most 1",
    "predict a.png --min-confidence nan": "--min-confidence: nan is not",
    "bench --conv direct": "unrecognized arguments: --conv ",
    "bench --l2 hot": "--l2: invalid choice: 'hot'",
    "bench --batch 0": "--batch: 0 is not between 1",
    "bench --peers --rounds 0": "--rounds: 0 is not between 1 and 1,000",
    "bench --noise much": "--noise: invalid float value: 'much'",
    "sweep --precision fp64": "--precision: invalid choice: 'fp64' .*; did you mean fp16",
    "profile --streams 0": "--streams: 0 is not between 1 and 64",
    "classify a.npy": "the following arguments are required: --out",
    "classify a.npy --out labels --count 0": "--count: 0 is not between 1",
    "train --epochs 0": "--epochs: 0 is not between 1",
    "train --storage float64": "--storage: invalid choice: 'float64' .*; did you mean float16",
    "compare a b --fail-above much": "--fail-above: 'much' is not a percentage such as 3%",
    "train --rate 0": "--rate: 0 is not above 0",
    "train --rate nan": "--rate: nan is not above 0",
    "train --l2 much": "--l2: 'much' is not a number",
    "train --smoothing 1.5": "--smoothing: 1.5 is not at least 0 and at most 1",
    "train --images 1": "--images: 1 is not between 2",
}
# Command → its error on every machine: names and values are checked before a GPU is needed.
CASES = {
    "predict a.npy --out labels.txt": "--out labels.txt has no known ending: let it end with one of .csv, .jsonl, .npy",
    "predict a.npy --out missing/labels.csv": "--out missing/labels.csv cannot be written: .*; name a file in",
    "classify a.npy --out labels": "a.npy does not exist; check the name",
    "classify 'a*.npy' --out labels": r"a\*.npy matches no file; check the pattern",
    "classify @list --out labels": "list does not exist; check the name",
    "classify a.npy --out labels --labels b.npy": "a.npy does not exist; check the name",
    "classify a.npy b.npy --out labels --labels c.npy": "--labels names 1 files for 2 shards: name one for each",
    "classify a.npy --out labels --resume --overwrite": "--resume keeps the results of an earlier run, --overwrite rep",
    "networks lenet6": "unknown network 'lenet6': choose one of .*; did you mean lenet5",
    "networks missing.toml": "missing.toml does not exist; check the name",
    "networks --toml": "--toml prints one network: name it, as in main.py networks lenet5 --toml",
    "networks mlp --toml --json -": "--toml and --json are two forms of the output: choose one",
    "compare missing other": "missing does not exist; check the name",
    "import missing --network mlp --out own.h5": "missing does not exist; check the name",
    "graph --network lenet": "unknown network 'lenet': .*; did you mean lenet5",
    "evaluate --against vgg": "unknown network or precision 'vgg': choose one of lenet5",
    "evaluate --against missing.h5": "missing.h5 does not exist",
    "evaluate --html missing/folder": "--html missing/folder cannot be written: .*; name a file in",
    "graph --conv winograd": "unknown conv kernel 'winograd': choose one of auto, .*direct"
    ".*register-patch, toom-cook, warpgroup, warpgroup-sparse, mma-any, mma, wgmma, wgmma-split, wgmma-exact, "
    "wgmma-int8, wgmma-any, wgmma-sparse, wgmma-sparse-exact, "
    "wgmma-sparse-int8, wgmma-any-sparse$",
    "graph --fc blas": "unknown gemm kernel 'blas': choose one of auto, .*tensor-core, split-k, warpgroup.*"
    ", wgmma-any, mma, wgmma; did you mean cublas",
    "graph --pool most": "unknown pool kernel 'most': choose one of auto, direct",
    "graph --conv conv1=winograd": "unknown conv kernel 'winograd': choose one of .*warpgroup, warpgroup-sparse$",
    "graph --conv conv_1=direct": "no layer 'conv_1' for --conv: .*; did you mean conv1",
    "graph --arch sm90": "unknown architecture 'sm90': .*; did you mean sm_90",
    "predict images --out answers.cvs": "answers.cvs has no known ending: .*; did you mean .csv",
    "export --network mlp --out mlp.onx": "mlp.onx has no known ending: .*; did you mean .onnx",
    "bench --only dircet": "unknown kernel 'dircet': .*; did you mean direct",
    "bench --peers --only ours,troch": "--only ours,troch: unknown engine 'troch': .*; did you mean torch",
    "bench --peers --precision fp32,fp61": "--precision fp32,fp61: unknown precision 'fp61': .*; did you mean fp16",
    "bench --peers --batches 1,x": "--batches 1,x: give whole numbers",
    "bench --peers --search --only ours": "--only ours: --search tries the settings of torch and jax: name one of them",
    "check --conv dircet": "unknown conv kernel 'dircet': .*; did you mean direct",
    "check --conv direct --layer conv_2 --device cpu": "no conv layer 'conv_2': .*; did you mean conv2",
    "sweep --conv shared-tile --layer conv_2": "no conv layer 'conv_2': .*; did you mean conv2",
    "sweep --conv shared-tile --set TIEL=8": "has no parameter 'TIEL': .*; did you mean TILE",
    "train --network mlp --dropout fc_1=0.1": "no layer 'fc_1' for --dropout: .*; did you mean fc1",
    "graph --conv conv1=naive": "unknown conv kernel 'naive'",
    "graph --conv conv1=wgmma": "--conv conv1=wgmma: wgmma computes two layers at once, "
    "name it for all of them: --conv wgmma$",
    "graph --fc fc1=naive,fc2=mma": "--fc fc2=mma: mma computes two layers at once, name it for all of them: --fc mma$",
    "graph --conv wgmma --no-fuse": "--conv wgmma computes two layers at once: leave --no-fuse out",
    "graph --conv conv1=direct,conv1=constant": "conv1=constant: conv1 is named twice, name one kernel for it",
    "graph --network mlp --conv direct": "network mlp has no layer for --conv direct: leave it out",
    "graph --network mlp --conv wgmma": "network mlp has no layer for --conv wgmma: leave it out",
    "graph --network mlp --pool pool1=shared": "network mlp has no layer for --pool pool1=shared: leave it out",
    "graph --conv fc1=direct": "no layer 'fc1' for --conv: choose one of conv1, conv2",
    "graph --fc conv1=naive": "no layer 'conv1' for --fc: choose one of fc1, fc2",
    "graph --conv conv1=": "--conv conv1=: name one kernel for all layers",
    "graph --latency --fc naive": "--latency chooses the fully connected kernels: leave --fc naive out",
    "graph --arch sm_75 --precision tf32": "tf32 .*needs sm_80 or later, this is sm_75.*: choose another kernel",
    "graph --arch sm_75 --fc tensor-core": "tensor-core needs sm_80 or later, this is sm_75",
    "precompile --arch sm_10": f"unknown architecture 'sm_10': choose one of {', '.join(ARCHITECTURES)}",
    f"precompile --arch sm_80 --network k7 --weights {find_shipped_weights('lenet5')}": "network k7 needs",
    "kernels --resources --instructions": "print tables of their own: give one of them",
    "bench --shape 1,2,3": "--shape 1,2,3: .*C,H,W,M,K,S",
    "bench --shape 1,4,9,2,5,1": "--shape 1,4,9,2,5,1: .*K at most H and W",
    "bench --shape 3,9,9,2,5,1 --network k7": "--network k7 and --shape 3,9,9,2,5,1: name one or the other",
    "bench --shape 0,9,9,2,5,1": "--shape 0,9,9,2,5,1: all must be at least 1",
    "bench --batches 10,many": "--batches 10,many: give whole numbers",
    "bench --batches 0,10": "--batches 0,10: .*1",
    "bench --only direct --save-tuning": "leave --only out",
    "bench --noise 0": "--noise 0: give a number between 0 and 1",
    "check": "name the kernel to check: FILE.cu, or one of --conv NAME, --fc NAME or --pool NAME",
    "check --conv direct --fc naive": "not allowed with",
    "check --conv direct --shape 1,2 --layer conv1": "--shape 1,2 and --layer conv1: name one or the other",
    "check --conv direct --network k7": "--network k7 needs --layer",
    "check --conv cublas --device cpu": "runs on a GPU alone: it multiplies in cuBLAS",
    "check --conv auto --device cpu": "--conv auto is no kernel: name one",
    "check --conv register-patch --shape 1,2,3": "give C,H,W,M,K,S as whole numbers of at least 1",
    "check --conv direct --shape 1,4,9,2,5,1": "the window must be at most as large as the image",
    "check --conv toom-cook --shape 1,9,9,2,5,2 --device cpu": "'toom-cook' cannot compute that: .*stride",
    "check --fc naive --shape 0,3": f"give {SIZES['gemm']} as whole",
    "rank none": "none is not a folder: name one with records",
    "learn nxet": "invalid choice: 'nxet' .*; did you mean next",
    "learn next 11": "there is no exercise '11': name its number, or choose one of 01_thread_index, .*",
    "learn hint 01_thread_idnex": "did you mean 01_thread_index",
    "learn list 3": "list shows all exercises: leave 3 out",
    "learn check 4": "04_barriers.cu is not in this folder: python main.py learn next 4 copies it here",
    "ladder --pages /dev/null": "/dev/null is no folder: name another one",
    "sweep": "name the thing to sweep: one of --conv NAME, --fc NAME, --pool NAME or --pipeline",
    "sweep --conv direct --fc naive": "name the thing to sweep: one of",
    "sweep --conv direct": "'direct' has no parameters to sweep: choose another",
    "sweep --conv shared-tile --set TILE=wide": "--set TILE=wide: give TILE=V,V,… with positive whole numbers",
    "sweep --conv shared-tile --set TILE=7": "TILE must be a multiple of 8.*: try other values",
    "sweep --conv implicit-gemm --set BK=10000": "shared memory.*: try other values",
    "sweep --conv shared-tile --set TILE=8 --set TILE=16": "--set TILE=8: TILE is set twice.*give",
    "sweep --conv auto": "not auto",
    "sweep --conv shared-tile --precision tf32": "does not compute in tf32, only in fp32, fp64, fp16: change --prec",
    "sweep --conv half2 --precision fp32": "conv kernel 'half2' does not compute in fp32, only in fp16: change",
    "sweep --pool shared --layer pool1 --fused": "leave --fused out",
    "sweep --network mlp --conv shared-tile": "network mlp has no conv layer",
    "profile --every-step --conv direct": "--every-step chooses kernels and precisions itself: leave --conv out",
    "profile --every-step --no-fuse": "leave --no-fuse out",
    "profile --every-step --counters": "--every-step prints counters alone: leave --counters out",
    "train": "name the network to train with --network: one of lenet5, fa19, k7, minidnn86, mlp",
    "train --resume c --start s --dropout fc1": "--dropout fc1: give LAYER=SHARE",
    "train --network mlp --dropout fc1=1": "--dropout fc1=1: give LAYER=SHARE,… with shares from 0 to below 1",
    "train --network mlp --labels some": "--labels FILE needs --data FILE",
    "train --network mlp --data-dir here": "is not in here, the directory given for Fashion-MNIST",
    "train --network mlp --out missing/folder": "--out missing/folder cannot be written: .*; name a file in",
    "train --resume missing": r"missing does not exist; check the name \(a finished training leaves no",
    "train --network mlp --data missing --labels none": "--labels none: train learns from labels, name them",
    "profile --trace /dev/null": "--trace /dev/null cannot be written: it is not a regular file",
}
UNWRITABLE = ("classify a.npy --out labels", "doctor", "cache", "kernels", "profile", "train --network mlp")
CASES |= {f"{one} --json missing/folder": "--json missing/folder cannot be written: .*; name a" for one in UNWRITABLE}
OF_NETWORKS = ("accuracy", "bench", "export --out own.onnx", "ladder", "train")
CASES |= {f"{command} --network vgg": "unknown network 'vgg': choose one of lenet5" for command in OF_NETWORKS}
# Command → its error, found before data are fetched: there are none here, and no test may fetch them.
BEFORE_DATA = {
    "--device cpu --batch 10001": "--batch 10001 is more than the 10000 images of Fashion-MNIST test split: add",
    "--device cpu --batch 60001 --split train": "--batch 60001 is more than the 60000 images",
    "--device cpu --conv nonsense": "nonsense",
    "--device cpu --fc conv1=naive": "has no layer 'conv1' for --fc",
    "train --network mlp --images 60001": "--images 60001 is more than the 60000 of Fashion-MNIST train split",
    "train --network mlp --images 10 --validation 10": "--validation 10 leaves none of the 10 images",
    "train --network mlp --dropout fc9=0.5": "no layer 'fc9' for --dropout",
    "train --device cpu --network mlp --workers 9 --batch 8": "--workers 9 is more than the 8 images of a batch",
    "train --network mlp_9999999": "9999999",
    "data_tools resize --size 0 --split test out": "--size 0 is not between 1 and",
    "data_tools resize --size 9 --split test file more": "name one or the other",
    "data_tools bundle nowhere.h5": "nowhere.h5 does not exist",
}
MISTAKES = USAGE | CASES | BEFORE_DATA
FROM_THE_SHELL = ("--batch 1e4", "bench --shape 1,2,3")


@pytest.mark.parametrize(
    ("command", "program"), [*((each, main) for each in MISTAKES), *((each, in_a_shell) for each in FROM_THE_SHELL)]
)
def test_mistake(command: str, program: Callable[[list[str]], int], workdir: Path, refuses: Refuses) -> None:
    words, wrong = command.removeprefix("data_tools "), MISTAKES[command]
    if command in USAGE:
        first = command.split()[0]
        # No suggestion where no name is similar.
        wrong += rf"((?!did you mean).)*see main\.py{f' {first}' if first in COMMANDS else ''} --help"
    refuses(shlex.split(words), wrong, program if words == command else data_tools)
    assert listing(workdir) == {}


def test_a_valid_command_tries_to_fetch(outside: Outside, capsys: pytest.CaptureFixture[str]) -> None:
    """This shows that the commands above fail earlier, and that a test notices an attempt to fetch."""
    assert main(["--device", "cpu"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "error: cannot get Fashion-MNIST: no source worked\n" in err and "FASHION_MNIST_DIR" in err
    assert "Traceback" not in err and list((cache_dir() / "fashion-mnist").iterdir()) == []
    tried = "\n".join(outside.taken())
    assert re.search(r"HEAD http://fashion-mnist", tried) and "CONNECT raw.githubusercontent.com:443" in tried
    assert "apt-get" in tried


def test_every_command_has_a_case() -> None:
    assert {command.split()[0] for command in CASES} == set(COMMANDS)


def test_settings_for_the_gpu_on_the_cpu(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report says that they have no effect."""
    write_good_files(workdir)
    given = ["--chunk", "5", "--streams", "2", "--no-fuse", "--warmup", "1"]
    for options, names in ((given, "--chunk, --streams, --no-fuse, --warmup"), (given[:2], "--chunk"), ([], "")):
        assert main(["--device", "cpu", "--wide", "--data", "images", "--labels", "none", *options]) == 0
        text = capsys.readouterr().out
        assert (f"note      {names}: for the GPU, without effect on the CPU" in text) == bool(options)
        assert ("without effect" in text) == bool(options)


def test_folders_for_plots_that_cannot_be_written(workdir: Path, refuses: Refuses) -> None:
    (workdir / "file").touch()
    for command in ("bench", "sweep --conv shared-tile", "train --network mlp"):
        for folder in ("file", "file/below"):
            refuses(f"{command} --plot {folder}", "--plot file.* cannot be written")
    assert list(listing(workdir)) == ["file"]
