"""Test ``profile --timeline``: time stamps that kernels write, their decoding, and the two charts."""

import json
import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from app.cuda.compiler import INCLUDE_DIR, compile_kernel, read_with_includes
from app.drawing import svg, warpgroups
from app.files.checks import BadValueError
from app.kernels import registry
from app.kernels.variant import Variant
from app.lab.profile import job, stamps
from app.lab.profile.stamps import HEAD, PHASES, Shares, warpgroup_timeline
from app.lab.profile.text import as_text
from app.lab.profile.timeline import add_time_stamps, first_kernel_shares
from app.network.definitions import LENET5
from app.planning.matching import Choices
from app.planning.plan import ExecutionPlan, plan
from app.records.derive import check_for_type
from app.records.profile import Images
from docs.generate.figures import FIGURES
from tests.kernels.test_kernels_build import ptx_of
from tests.support.kernel_grid import served
from tests.support.networks_for_tests import random_graph
from tests.support.schemas import mistakes
from tests.support.shell import user_error

CLOCKS = {"stage": 400, "conv1": 900, "pool": 700, "load": 40, "conv2": 5200, "store": 800}
MHZ = 2000
SHARES = Shares.from_launch_sizes(1000, 2, 16, 4)


def stamp_words(shares: Shares = SHARES) -> np.ndarray:
    """Return made-up words of every warpgroup; each block starts 100 ns after the previous one, with another clock."""
    found = np.zeros((shares.blocks * shares.warpgroups, HEAD + shares.max_stamp_count), np.uint64)
    for index, row in enumerate(found):
        block, number = divmod(index, shares.warpgroups)
        begin = clock = 10_000 + 1_000_000 * block + 300 * number
        stamps = []
        for turn in range(shares.round_count):
            taken = shares.image_count(block, number, turn)
            if not taken:
                break
            for phase in ("stage", *("conv1", "pool") * (2 * taken), "load", "conv2", "store"):
                clock += CLOCKS[phase]
                stamps.append(clock * 8 + PHASES.index(phase))
        nanoseconds = [
            5_000_000 + 100 * block + (at - 10_000 - 1_000_000 * block) * 1000 // MHZ for at in (begin, clock)
        ]
        row[: HEAD + len(stamps)] = [len(stamps), nanoseconds[0], begin, nanoseconds[1], clock, *stamps]
    return found


def document() -> dict[str, Any]:
    """Return the ``timeline`` part of a profile document, from made-up stamps."""
    return {
        "kernel": "wgmma",
        "layers": "conv1+relu1+pool1+conv2+relu2+pool2",
        "images_are": "read by the first kernel",
        "end_to_end_ms": {"plain": 0.045, "stamped": 0.047},
        "on_card_ms": 0.03,
        "raw_copy_ms": 0.02,
        **warpgroup_timeline(stamp_words(), SHARES),
    }


PAIRS = [row for row in registry.variants("conv_pair") if row.instructions == "wgmma"]
STAMPED = [row for row in PAIRS if "-any" not in row.name]
(EXACT,) = (row for row in STAMPED if row.name == "wgmma-exact")
MACRO = re.compile(r'^ *(?:STAMP\w*\(\w*\);|#include "stamps\.cuh")\n', re.MULTILINE)


def lenet5_plan(precision: str) -> ExecutionPlan:
    """Return the plan of lenet5 with random weights on a Hopper card."""
    return plan(random_graph(LENET5, bias=False), "sm_90a", Choices(precision))


def test_every_wgmma_kernel_has_all_stamps() -> None:
    for row in STAMPED:
        texts = read_with_includes(row.path)
        assert sum(len(MACRO.findall(text)) for text in texts.values()) == 9, row.name


# Other kernels include the same headers; the kernel of split operands is compiled below.
@pytest.mark.parametrize("row", [row for row in STAMPED if row.name in ("wgmma", "wgmma-int8")],
                         ids=lambda row: row.name)  # fmt: skip
def test_with_stamps_the_kernel_reads_the_clock(row: Variant) -> None:
    stamping = ptx_of(row, row.dtypes[0], STAMPS=50, STAMPED=528)
    assert "clock64" in stamping and "globaltimer" in stamping


def test_without_stamps_the_machine_code_is_unchanged() -> None:
    texts = read_with_includes(EXACT.path)
    bare = {name: MACRO.sub("", text) for name, text in texts.items()}
    assert not any("STAMP" in text for name, text in bare.items() if name != "stamps.cuh")
    (dtype,) = EXACT.dtypes
    assert bare != texts and ptx_of(EXACT, dtype) == ptx_of(EXACT, dtype, bare)


def test_with_stamps_the_kernel_compiles_for_hopper() -> None:
    config = add_time_stamps(EXACT, SHARES).launch_config(served(EXACT, "sm_90a")[0])
    assert config.defines.items() >= {"STAMPS": SHARES.max_stamp_count, "STAMPED": 64}.items()
    assert b"\0stamps\0" in compile_kernel(EXACT.path, config.defines, "sm_90a")  # the name by which the host finds it


def test_phases_in_cuda_and_python_agree() -> None:
    header = (INCLUDE_DIR / "stamps.cuh").read_text(encoding="utf-8")
    (phases,) = re.findall(r"enum class Phase \{ (.*?) \}", header)
    assert tuple(phases.lower().split(", ")) == PHASES == tuple(warpgroups.PHASES)
    assert f"STAMPS_HEAD = {stamps.HEAD};" in header


# --- decoding


@pytest.mark.parametrize("images", [1, 7, 130, 131, 10_000])
def test_every_image_is_taken_once(images: int) -> None:
    shares = Shares.from_launch_sizes(images, 2, 132, 4)
    turns = [
        shares.image_count(block, number, turn)
        for block in range(shares.blocks)
        for number in range(shares.warpgroups)
        for turn in range(shares.round_count + 1)
    ]
    assert sum(turns) == images and max(turns) == shares.each


def test_phases_last_as_long_as_their_clocks() -> None:
    found = stamps.warpgroup_timeline(stamp_words(), SHARES)
    assert found["mhz"] == pytest.approx(MHZ, rel=0.01)
    assert len(found["warpgroups"]) == 4
    for spans in found["warpgroups"]:
        for phase, start, stop in spans:
            assert stop - start == pytest.approx(CLOCKS[phase] / MHZ, rel=0.02, abs=0.002)
        assert all(before[2] == after[1] for before, after in pairwise(spans))
    # Warpgroups of one multiprocessor have one clock: they started 300 clocks apart.
    starts = [spans[0][1] for spans in found["warpgroups"]]
    assert np.diff(starts) == pytest.approx(300 / MHZ, rel=0.02)


def test_images_are_requested_then_staged_then_computed() -> None:
    images = stamps.warpgroup_timeline(stamp_words(), SHARES)["images"]
    assert len(images["us"]) == stamps.POINTS + 1
    for earlier, later in (("requested", "staged"), ("staged", "computed")):
        assert all(before >= after for before, after in zip(images[earlier], images[later], strict=True))
    assert images["requested"][-1] == images["staged"][-1] == images["computed"][-1] == SHARES.images
    assert images["computed"][0] == 0 and sorted(images["computed"]) == images["computed"]
    check = check_for_type(Images)
    assert check(images) == images
    for name in images:
        with pytest.raises(BadValueError, match=f"{name}: a list is not"):
            check({**images, name: [0]})


def test_stamps_beyond_the_count_are_ignored() -> None:
    """A warpgroup's count of stamps ends early, as a kernel's does at the constant STAMPS."""
    short = stamp_words()
    short[5, 0] = 7
    found = stamps.decode_time_stamps(short, SHARES)[5]
    assert len(found.phases) == 7 and len(found.clocks) == 8


def test_kernels_without_stamps_are_refused() -> None:
    shares = first_kernel_shares(lenet5_plan("fp16"), 10_000, 132)
    assert (shares.each, shares.blocks, shares.warpgroups, shares.round_count) == (2, 132, 5, 8)
    assert "--precision fp16" in user_error(lambda: first_kernel_shares(lenet5_plan("fp32"), 10_000, 132))
    assert "leave --batch out" in user_error(lambda: first_kernel_shares(lenet5_plan("fp16"), 10**7, 132))


# --- charts, document, text


def test_charts_show_every_warpgroup_and_the_bus() -> None:
    timeline = document()
    first = ElementTree.fromstring(warpgroups.draw_warpgroup_timeline(timeline, "warpgroups & more"))
    said = ["".join(element.itertext()) for element in first.iter("text")]
    assert [said.count(f"warpgroup {number}") for number in range(5)] == [2, 2, 2, 2, 0]
    assert {meaning for *_, meaning in warpgroups.PHASES.values()} <= {*said}
    assert sum(one.get("class") == "axis" for one in first.iter()) == 2, "each strip has its axis"
    second = ElementTree.fromstring(warpgroups.draw_bus_chart(timeline, "bus"))
    assert "1,000 images" in (second[1].text or "") and "read by the first kernel" in (second[1].text or "")


def test_multiplying_warpgroups_are_counted() -> None:
    rows = [[["conv1", 0.0, 2.0], ["pool", 2.0, 3.0], ["conv2", 3.0, 5.0]], [["stage", 0.0, 1.0], ["conv1", 1.0, 4.0]]]
    assert warpgroups.multiplying_warpgroup_counts(rows) == [(0, 1, 1), (1, 2, 2), (2, 3, 1), (3, 4, 2), (4, 5, 1)]


def test_page_document_and_text() -> None:
    page = job.timeline_page(document(), 1000, "<Card>")
    assert page.startswith("<!DOCTYPE html>\n<title>Timeline of 1,000 images, wgmma, &lt;Card&gt;</title>")
    assert page.count("</svg>") == 2 and svg.style_sheet() in page
    stored = json.loads((FIGURES / "h100_profile_lenet5.json").read_text(encoding="utf-8"))
    whole = json.loads(json.dumps({**stored, "timeline": document()}, allow_nan=False))
    assert mistakes(whole) == []
    assert mistakes({**stored, "timeline": {**document(), "mhz": "fast"}})
    assert "wgmma with stamps of the clock takes 0.0470 ms end to end instead of 0.0450 ms" in " ".join(
        as_text(whole).split()
    )


def test_no_time_is_negative_if_the_clock_in_ns_is_coarse() -> None:
    """Warpgroups start before the first of their block, in the same tick of the clock in ns."""
    found = stamp_words().reshape(SHARES.blocks, SHARES.warpgroups, -1)[:, ::-1].reshape(stamp_words().shape)
    found[:, [1, 3]] = found[:, [1, 3]] // 2000 * 2000
    told = stamps.warpgroup_timeline(found, SHARES)
    assert min(start for group in told["warpgroups"] for _, start, _ in group) >= 0
