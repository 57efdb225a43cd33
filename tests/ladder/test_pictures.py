"""Test the ladder chart on the index page, and the page of charts."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.drawing.svg import format_number
from app.ladder.card import Card
from app.ladder.lessons import ladder_steps
from app.ladder.pages import Pages
from app.ladder.pictures import pictures_page
from docs.generate.figures import FIGURES
from docs.generate.site import COMMAND
from tests.lab.test_timeline import document
from tests.ladder.test_site import plain_text


def test_index_page_begins_with_the_ladder_chart(site: Path, card: Card) -> None:
    """Check the three sentences, then a bar for each measured step in reading order with a link to its page."""
    text = (site / "index.html").read_text(encoding="utf-8")
    said = plain_text(re.findall(r"<p>.*?</p>", text, re.DOTALL)[0])
    assert text.index("<h1>") < text.index("<p>") < text.index("<svg") < text.index("<table")
    times = {
        step.title: sum(layer.ms or 0 for layer in layers)
        for step in ladder_steps("conv")
        if len(layers := [layer for layer in card.layers(step) if layer.network == "lenet5"]) == 2
        and all(layer.ms for layer in layers)
    }
    plain = [times[step.title] for step in ladder_steps("conv") if step.title in times and step.dtype == "float32"]
    assert len(re.findall(r"[.](?= [A-Z]|$)", said)) == 3
    for ms in (times["1 image-loop"], min(plain), min(times.values())):
        assert f"{format_number(ms)} ms" in said
    assert f"{format_number(times['1 image-loop'] / min(plain))} times as fast" in said
    charts = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    titles = {step.page_name: step.title for step in ladder_steps("conv")}
    for chart in charts:
        rows = re.findall(r'<a href="(.*?)\.html">(.*?)</a>', chart, re.DOTALL)
        assert [titles[slug] for slug, _ in rows] == [title for title in titles.values() if title in times]
        assert all(f"{format_number(times[titles[slug]])} ms" in row for slug, row in rows)
    assert [re.findall(r'width="(\d+)"', chart)[0] for chart in charts] == ["870", "340"]


def test_index_page_without_measured_convolutions_has_no_chart(card: Card) -> None:
    bench = {**card.benches["lenet5"], "totals": []}
    index = Pages(replace(card, benches={"lenet5": bench}), COMMAND).index_page().html
    assert "<svg" not in index and "times as fast" not in index and '"conv-direct.html"' in index


def test_charts_show_predictions_of_steps_and_link_their_pages(site: Path, card: Card) -> None:
    text = (site / "pictures.html").read_text(encoding="utf-8")
    assert "fast-path" in text
    for network in card.networks:
        (chart,) = re.findall(rf"<svg[^>]*journey-{network}-chart-title.*?</svg>", text, re.DOTALL)
        for step in ladder_steps("conv"):
            times = [layer.ms for layer in card.layers(step) if layer.network == network]
            if len(times) == 2 and all(times):  # both convolutions
                assert f'<a href="{step.page_name}.html">' in chart
                assert re.search(rf"{step.row.step} {step.row.name}[^:;]*: [\d,.]+ ms, predicted [\d,.]+ ms", chart)


def charts_html(card: Card, **changed: Any) -> str:
    """Return the page of charts of a card that has only lenet5's bench document and those in ``changed``."""
    nothing: dict[str, Any] = {"counters": {}, "reports": {}, "timelines": {}}
    benches = {"lenet5": card.benches["lenet5"]}
    return pictures_page(replace(card, benches=benches, **nothing | changed)).body


def test_charts_page_without_counters_and_reports(card: Card) -> None:
    found = charts_html(card)
    assert "counted by the hardware" not in found and "fast-path" not in found


def test_rooflines_use_bytes_counted_by_hardware(card: Card) -> None:
    counts = {"dram_read": 4e8, "dram_written": 1e8}
    row = {"operation": "conv", "name": "direct", "layer": "conv2", "counts": counts, "images": 1000}
    found = charts_html(card, counters={"lenet5": {"rows": [row]}})
    assert "counted by the hardware" in found
    assert "2 direct, fp32: " in found and "(measured)" in found and "counted for 1,000 images" in found


def test_charts_page_without_timelines_says_how_to_record_them(card: Card) -> None:
    without = charts_html(card, reports=card.reports)
    assert "--timeline" in without and "warpgroups-fp16" not in without
    stored = json.loads((FIGURES / "h100_profile_lenet5.json").read_text(encoding="utf-8"))
    found = charts_html(card, reports=card.reports, timelines={"fp16": {**stored, "timeline": document()}})
    assert "--timeline" not in found and "warpgroups-fp16-chart" in found and "bus-fp16-chart" in found
