"""Test the pages of pictures and interactives and docs/learn.md as a page, also in a browser where there is one."""

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from app.ladder.card import Card
from app.ladder.pictures import pictures
from app.ladder.steps import ladder
from docs.generate.figures import FIGURES
from tests.support.browser import opened
from tests.support.stamps_for_tests import document

LOOKED_AT = ("index", "conv-direct", "learn", "pictures", "interactives")


def test_the_journey_shows_steps_with_their_predictions_and_links(card: Card) -> None:
    text = pictures(card).body
    for network in card.networks:
        (chart,) = re.findall(rf"<svg[^>]*journey-{network}-chart-title.*?</svg>", text, re.DOTALL)
        for step in ladder("conv"):
            times = [layer.ms for layer in card.layers(step) if layer.network == network]
            if times and all(times):
                assert f'<a href="{step.slug}.html">' in chart
                assert re.search(rf"{step.row.step} {step.row.name}[^:;]*: [\d,.]+ ms, predicted [\d,.]+ ms", chart)


def test_bytes_that_the_hardware_counted_move_points(card: Card) -> None:
    counts = {"dram_read": 4e8, "dram_written": 1e8}
    row = {"operation": "conv", "name": "direct", "layer": "conv2", "counts": counts, "images": 1000}
    found = pictures(replace(card, counters={"lenet5": {"rows": [row]}})).body
    assert (
        "counted by the hardware" in found
        and "counted by the hardware" not in pictures(replace(card, counters={})).body
    )
    assert "2 direct, fp32: " in found and "(measured)" in found and "counted for 1,000 images" in found


def test_without_stamps_the_page_says_how_to_get_them(card: Card) -> None:
    without = pictures(replace(card, timelines={})).body
    assert "--timeline" in without and "warpgroups-fp16" not in without
    stored = json.loads((FIGURES / "h100_profile_lenet5.json").read_text(encoding="utf-8"))
    found = pictures(replace(card, timelines={"fp16": {**stored, "timeline": document()}})).body
    assert "--timeline" not in found and "warpgroups-fp16-chart" in found and "bus-fp16-chart" in found


def test_a_card_without_reports_has_no_budget(card: Card) -> None:
    assert "fast-path" in pictures(card).body
    assert "fast-path" not in pictures(replace(card, reports={}, timelines={})).body


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_browser_shows_the_page_without_a_complaint(name: str, site: Path, tmp_path: Path) -> None:
    found = opened(site / f"{name}.html", tmp_path / "profile")
    assert found.console == []
    title = re.findall(r"<h1[^>]*>(.*?)</h1>", found.html, re.DOTALL)
    assert title and unescape(re.sub(r"<[^>]+>", "", title[0])).strip()
