"""What each of bench's jobs refuses, without a GPU: options of another job, and values that cannot be."""

from pathlib import Path

import pytest

from tests.support.shell import Refuses

MISTAKES = {
    "--network nosuch": "unknown network 'nosuch'",
    "--shape 1,2,3": "six whole numbers",
    "--shape 1,4,4,1,5,1": "K at most H and W",
    "--shape 12,33,33,24,5,1 --network k7": "--network k7 and --shape 12,33,33,24,5,1: name one or the other",
    "--batches 10,x": "whole numbers",
    "--batches 0": "between 1 and",
    "--only nosuch": "unknown kernel 'nosuch'",
    "--only direct --save-tuning": "leave --only out",
    "--noise 0": "--noise 0",
    "--l2 tepid": "tepid",
    "--json missing/folder": "--json missing/folder cannot be written",
    "--peers --scenario offline": "argument --scenario: not allowed with argument --peers",
    "--peers --rounds 0": "--rounds: 0 is not between 1 and 1,000",
    "--peers --shape 3,9,8,5,3,2": "--shape is for timing kernels: leave it out with --peers",
    "--peers --network vgg": "unknown network 'vgg': choose one of lenet5",
    "--scenario offline --network vgg": "unknown network 'vgg': choose one of lenet5",
    "--peers --save-tuning": "--save-tuning is for timing kernels",
    "--peers --noise 0.5": "--noise is for timing kernels",
    "--peers --only ours,tensorflow": "unknown engine 'tensorflow': choose of ours, torch-eager",
    "--peers --precision fp8": "--precision: invalid choice: 'fp8'",
    "--peers --json missing/folder": "--json missing/folder cannot be written",
    "--rounds 3": "--rounds goes with --peers or --scenario",
    "--precision fp16": "--precision goes with --peers or --scenario",
    "--scenario server": "--scenario: invalid choice: 'server'",
    "--scenario offline --only direct": "--only is not for --scenario",
    "--scenario offline --rounds 3": "--rounds is not for --scenario",
    "--scenario offline --batches 1,2": "--batches is for timing kernels: leave it out with --scenario",
    "--scenario offline --plot plots": "--plot is for timing kernels",
    "--scenario offline --json missing/folder": "--json missing/folder cannot be written",
    "--training --network k7": "--network is not for --training: leave it out",
    "--training --rounds 3": "--rounds is not for --training",
    "--training --only ours": "--only is not for --training",
    "--training --peers": "not allowed with",
    "--training --l2 warm": "--l2 is for timing kernels: leave it out with --training",
}


@pytest.mark.parametrize("options", MISTAKES)
def test_mistakes(options: str, refuses: Refuses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refuses(f"bench {options}", MISTAKES[options])


@pytest.mark.parametrize("job", ["", "--peers", "--scenario offline", "--training"])
def test_no_gpu(job: str, refuses: Refuses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cuda.device.why_no_gpu", lambda: "there is none")
    refuses(f"bench {job}", "bench needs an NVIDIA GPU: there is none")
