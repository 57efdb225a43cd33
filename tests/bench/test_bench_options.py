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
    "--peers --network vgg": "unknown network 'vgg': choose one of lenet5",
    "--scenario offline --network vgg": "unknown network 'vgg': choose one of lenet5",
    "--peers --only ours,tensorflow": "unknown engine 'tensorflow': choose of ours, torch-eager",
    "--peers --precision fp8": "--precision: invalid choice: 'fp8'",
    "--peers --json missing/folder": "--json missing/folder cannot be written",
    "--rounds 3": "--rounds goes with --peers or --scenario",
    "--precision fp16": "--precision goes with --peers or --scenario",
    "--scenario server": "--scenario: invalid choice: 'server'",
    "--scenario offline --json missing/folder": "--json missing/folder cannot be written",
    "--training --peers": "not allowed with",
}
# Job → options that are not for it, beside those that are for timing kernels.
NOT_OF = {
    "--peers": (),
    "--scenario offline": ("--only direct", "--rounds 3"),
    "--training": ("--only ours", "--rounds 3", "--precision fp16", "--network k7", "--batch 7"),
}
OF_KERNELS = ("--shape 3,9,8,5,3,2", "--batches 1,2", "--l2 warm", "--noise 0.5", "--plot plots", "--save-tuning")
for job, others in NOT_OF.items():
    name = job.split()[0]
    MISTAKES |= {f"{job} {given}": f"{given.split()[0]} is not for {name}: leave it out" for given in others}
    of_kernels = f"is for timing kernels: leave it out with {name}"
    MISTAKES |= {f"{job} {given}": f"{given.split()[0]} {of_kernels}" for given in OF_KERNELS}


@pytest.mark.parametrize("options", MISTAKES)
def test_mistakes(options: str, refuses: Refuses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refuses(f"bench {options}", MISTAKES[options])


@pytest.mark.parametrize("job", ["", "--peers", "--scenario offline", "--training"])
def test_no_gpu(job: str, refuses: Refuses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cuda.device.why_no_gpu", lambda: "there is none")
    refuses(f"bench {job}", "bench needs an NVIDIA GPU: there is none")
