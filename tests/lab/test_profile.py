"""Test ``main.py profile`` without a GPU: API calls, recorded spans, rows, text and traces."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from cupy.cuda import runtime
from cupy_backends.cuda.api import driver

from app.cli import main
from app.commands.profile import rerun_arguments
from app.engine.gpu import GpuEngine
from app.kernels.launch import Launch
from app.kernels.variant import KernelLaunch
from app.lab.profile import api_calls, job, spans
from app.lab.profile.api_calls import Call
from app.lab.profile.spans import Span
from app.lab.profile.text import as_text
from app.network.definitions import LENET5
from app.planning.matching import Choices
from app.planning.plan import plan
from app.records.profile import Profile
from app.terminal.output import Output
from docs.generate.figures import FIGURES
from tests.support.fake_card import ARCHITECTURE, fake_card
from tests.support.kernel_grid import row_of
from tests.support.networks_for_tests import random_graph, random_images
from tests.support.requests import requested
from tests.support.schemas import check_widths
from tests.support.shell import listing

RUN = [
    Span("h2d", "", "images to the card (H2D)", 0, 0.0, 1.0, nbytes=4_000_000),
    Span("kernel", "conv1+relu1", "direct", 0, 1.0, 4.0, entry="conv_direct"),
    Span("d2h", "", "results to the host (D2H)", 0, 4.0, 4.5, nbytes=1000),
    Span("h2d", "", "images to the card (H2D)", 1, 1.0, 2.0, nbytes=4_000_000),
    Span("kernel", "conv1+relu1", "direct", 1, 2.0, 3.0, entry="conv_direct"),
]


class Stream:
    def synchronize(self) -> str:
        return "done"


class OwnStream(Stream): ...


def test_calls_are_counted_and_functions_restored() -> None:
    module: Any = SimpleNamespace(copy=lambda *arguments: arguments)
    before, stream = module.copy, OwnStream()
    with api_calls.record_calls([("copy", module, "copy"), ("wait", OwnStream, "synchronize")]) as calls:
        assert module.copy(1, 2) == (1, 2)
        assert module.copy() == ()
        assert stream.synchronize() == "done"
    assert [call.name for call in calls] == ["copy", "copy", "wait"]
    assert all(call.stop >= call.start for call in calls)
    assert module.copy is before and "synchronize" not in vars(OwnStream)
    module.copy(), stream.synchronize()
    assert len(calls) == 3
    module.copy = fails = Mock(side_effect=ValueError)
    with pytest.raises(ValueError), api_calls.record_calls([("copy", module, "copy")]) as calls:
        module.copy()
    assert module.copy is fails and len(calls) == 1


def test_every_traced_function_is_wrapped_and_restored() -> None:
    found = [target[1:] for target in api_calls.traced_functions()]
    originals = [getattr(*place) for place in found]
    with api_calls.record_calls():
        assert all(getattr(*place) != original for place, original in zip(found, originals, strict=True))
    assert [getattr(*place) for place in found] == originals


def test_calls_are_summarised_by_function() -> None:
    calls = [Call("launch", 0, 0.001), Call("launch", 1, 1.003), Call("copy", 2, 2.010)]
    copy, launch = api_calls.summarise_calls(calls, runs=2, host_ms=10)
    assert copy["name"] == "copy" and copy["calls"] == 0.5 and copy["share"] == pytest.approx(0.5)
    assert launch["calls"] == 1 and launch["total_ms"] == pytest.approx(2)
    assert launch["average_us"] == pytest.approx(2000) and launch["max_us"] == pytest.approx(3000)


def test_rows_of_kernels_and_copies() -> None:
    kernel, h2d, d2h = job.span_rows([RUN, RUN])
    assert kernel["kind"] == "kernel" and kernel["calls"] == 2 and kernel["total_ms"] == pytest.approx(4)
    assert (kernel["min_ms"], kernel["average_ms"], kernel["max_ms"]) == (1, 2, 3)
    assert kernel["bytes"] is None and kernel["share"] == pytest.approx(4 / 6.5)
    assert h2d["bytes"] == 8_000_000 and h2d["gbytes_per_s"] == pytest.approx(4)
    assert sum(row["share"] for row in (kernel, h2d, d2h)) == pytest.approx(1)


def test_overlap_of_copies_and_kernels() -> None:
    assert job.mean_overlap([RUN]) == pytest.approx({"copies_ms": 2.5, "kernels_ms": 3.0, "both_ms": 1.0})


def test_profile_text() -> None:
    document: Profile = json.loads((FIGURES / "h100_profile_lenet5.json").read_text(encoding="utf-8"))
    text = check_widths(as_text, document)
    for told in ("conv1+relu1", "min ms", "GB/s", "cuLaunchKernel", "load", "latency", "89% of it under kernels"):
        assert told in text
    assert "with API calls counted 2.0155 ms" in text and "ui.perfetto.dev" not in text
    text = as_text({**document, "trace": "timeline.json", "counters": [], "counters_note": "no counters: why"})
    assert "timeline.json" in text and "no counters: why" in text and "Nsight" not in text


def test_trace_events() -> None:
    calls = [Call("cudaMemcpyAsync", 100.0, 100.00001), Call("cuLaunchKernel", 100.001, 100.0015)]
    document = json.loads(json.dumps(job.trace_event_document(RUN, calls, 100.0, "Card"), allow_nan=False))
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in document["traceEvents"] if e["ph"] == "M"}
    assert sorted(names.values()) == ["API calls", "Card", "host", "stream 1", "stream 2"]
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(RUN) + len(calls)
    assert all((event["pid"], event["tid"]) in names for event in events)
    kernel = next(event for event in events if event["cat"] == "kernel")
    assert (kernel["ts"], kernel["dur"], kernel["name"]) == (1000, 3000, "conv1+relu1 (direct)")
    copy = next(event for event in events if event["cat"] == "copy")
    assert copy["args"] == {"bytes": 4_000_000, "GB/s": 4.0}
    launch = next(event for event in events if event["name"] == "cuLaunchKernel")
    assert launch["ts"] == pytest.approx(1000) and launch["dur"] == pytest.approx(500)


@pytest.mark.usefixtures("some_card")
def test_an_interrupted_command_keeps_the_older_trace(
    interrupt_writing: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is a mock. The first command replaces a trace, the second one is interrupted."""
    engine, recorder = MagicMock(chunk=7), MagicMock(zero=0.0)
    engine.__enter__.return_value = engine
    recorder.spans.return_value = RUN
    monkeypatch.setattr("app.engine.gpu.GpuEngine", lambda *_, **__: engine)
    monkeypatch.setattr("app.lab.profile.spans.Recorder", lambda _: recorder)
    monkeypatch.setattr(job, "load_images", lambda graph, batch: (random_images(graph.network, batch), "noise"))
    path = tmp_path / "timeline.json"
    path.write_text('{"traceEvents": ')
    command = ["profile", "--batch", "7", "--trace", str(path), "--overwrite"]
    assert main(command) == 0
    events = json.loads(path.read_text())["traceEvents"]
    assert [event["ts"] for event in events if event["ph"] == "X"] == [span.start * 1e3 for span in RUN]
    before = listing(tmp_path)
    interrupt_writing()
    assert main(command) == 2 and listing(tmp_path) == before


DIRECTIONS = {1: "h2d", 2: "d2h", 3: "d2d"}  # CUDA's numbers


@pytest.mark.parametrize(
    ("chosen", "special"),
    [
        (Choices("fp32", kernels={"conv": row_of("conv", "constant")}), "d2d"),  # copies filters to constant memory
        (Choices("fp16"), "launch_ex"),  # of kernels that start before the previous one has ended
    ],
    ids=["fp32", "fp16"],
)
def test_every_copy_and_launch_of_a_run_has_a_span_between_two_events(chosen: Choices, special: str) -> None:
    """The card is a fake that computes nothing; the second run reuses the events of the first."""
    execution = plan(random_graph(LENET5, bias=False), ARCHITECTURE, chosen)
    seen: list[set[int]] = []
    with fake_card() as card, GpuEngine(execution, chunk=2, streams=2) as engine:
        recorder, outputs = spans.Recorder(engine), engine.allocate_outputs(5)
        streams = [buffers.stream.ptr for buffers in engine.stream_buffers]
        originals = runtime.memcpyAsync, driver.launchKernel, Launch.__call__
        for _ in range(2):
            card.calls.clear()
            recorder.reset_clock()
            with recorder.record():
                engine.submit(random_images(LENET5, 5), outputs)
                engine.wait()
            zero = next(call[1] for call in card.calls if call[0] == "record")
            expected = []
            for before, (kind, *operands), after in zip(card.calls, card.calls[1:], card.calls[2:], strict=False):
                if kind in ("copy", "launch", "launch_ex"):
                    assert before[0] == after[0] == "record" and before[2] == after[2]
                    what = (DIRECTIONS[operands[3]], operands[2]) if kind == "copy" else ("kernel", operands[0])
                    expected.append((*what, streams.index(before[2]), before[1] - zero, after[1] - zero))
            found = recorder.spans()
            assert expected == [
                (each.kind, each.entry or each.nbytes, each.stream, each.start, each.stop) for each in found
            ]
            assert {each.layer for each in found if each.entry} == {node.name for node in execution.nodes}
            assert {each.layer for each in found if each.kind in ("h2d", "d2h")} == {""}
            seen.append({call[1] for call in card.calls if call[0] == "record"})
        assert seen[0] == seen[1] and originals == (runtime.memcpyAsync, driver.launchKernel, Launch.__call__)
    assert special in {call[0] for call in card.calls} | {each.kind for each in found}


def test_names_of_a_kernels_functions() -> None:
    variant: Any = SimpleNamespace(name="im2col-gemm", entry="conv_im2col_gemm")
    part = KernelLaunch(32, lambda _: (1, 1, 1), entry="conv_im2col_gemm_unroll")
    assert spans.action_kind_name_entry(part, variant) == ("kernel", "im2col-gemm: unroll", "conv_im2col_gemm_unroll")
    assert spans.action_kind_name_entry(KernelLaunch(32, lambda _: (1, 1, 1)), variant)[1:] == (
        "im2col-gemm",
        "conv_im2col_gemm",
    )


def test_waiting_for_the_copy_engine_is_not_timed() -> None:
    copies = [Span("h2d", "", "in", stream, 0.0, 1.0 + stream) for stream in (1, 0)]
    second, first = spans.remove_queueing_time(copies)
    assert (first.start, first.stop, second.start, second.stop) == (0, 1, 1, 2)


def test_rerun_arguments_repeat_the_request() -> None:
    asked = "--batch 7 --conv conv1=direct --weights w.h5 --no-fuse --latency --chunk 3 --trace t --counters --wide"
    request = requested("profile", asked)
    again = requested("profile", " ".join(rerun_arguments(request)[1:]))
    assert again == replace(request, trace=None, counters=False, output=Output(json=None, wide=False))
