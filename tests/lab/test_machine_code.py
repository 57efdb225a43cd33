"""Test the counting of instructions in the text that nvdisasm prints."""

import pytest

from app.tools import machine_code
from app.tools.machine_code import CLASSES, OTHER, functions, hottest_loop
from tests.support.shell import user_error

# A loop that multiplies twice, with a loop within it that copies; before it a loop that multiplies once.
TEXT = """
.text.first:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   FFMA R2, R3, R4, R2 ;
        /*0020*/               @P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0030*/                   LDG.E.CONSTANT R3, desc[UR4][R6.64] ;
.L_x_2:
        /*0040*/                   STS [R5], R3 ;
        /*0050*/              @!P1 BRA `(.L_x_2) ;
        /*0060*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0070*/                   LDS.128 R8, [R5] ;
        /*0080*/                   HFMA2.MMA R10, -RZ, RZ, 0, 0 ;
        /*0090*/                   FFMA R2, R8, R4.reuse, R2 ;
        /*00a0*/                   HMMA.16816.F32 R4, R4, R8, RZ ;
        /*00b0*/              @!UP0 BRA `(.L_x_1) ;
        /*00c0*/                   EXIT ;
.text.second:
        /*0000*/                   FFMA R2, R8, R4, R2 ;
.L_x_3:
        /*0010*/                   BRA `(.L_x_3) ;
"""


def test_the_hottest_loop_is_counted_without_copies_within_it() -> None:
    (first, code, labels), (second, straight, others) = functions(TEXT)
    assert (first, len(code), second, len(straight)) == ("first", 13, "second", 2)
    assert labels == {".L_x_0": 0x10, ".L_x_1": 0x30, ".L_x_2": 0x40}
    counted = {"multiply": 2, "global_load": 1, "shared_load": 1, "barrier": 1, "branch": 1, OTHER: 1}
    assert hottest_loop(code, labels) == {"instructions": 7, **dict.fromkeys(CLASSES, 0), OTHER: 0} | counted
    assert hottest_loop(straight, others) is None  # the loop at a kernel's end multiplies nothing
    assert hottest_loop(code[:3], labels) and not hottest_loop(code[:3] + 2 * straight[:1], labels)


def test_without_the_tool_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code.shutil, "which", lambda _: None)
    assert "pip install nvidia-cuda-nvdisasm" in user_error(lambda: machine_code.measure([], "sm_90a"))
