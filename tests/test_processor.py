"""Cores: what processes share, and how they are named."""

import os

import pytest

from app.base.processor import core_groups, core_names, own_cores, usable_cores


def test_own_cores() -> None:
    assert own_cores() == sorted(os.sched_getaffinity(0)) and usable_cores() == len(own_cores())


@pytest.mark.parametrize(
    ("count", "groups"),
    [(1, [[4, 5, 7, 9, 11]]), (2, [[4, 5], [7, 9, 11]]), (5, [[4], [5], [7], [9], [11]])],
)
def test_every_core_belongs_to_one_process(count: int, groups: list[list[int]]) -> None:
    assert core_groups([4, 5, 7, 9, 11], count) == groups


def test_processes_share_cores_where_there_are_too_few() -> None:
    groups = core_groups([4, 5], 5)
    assert len(groups) == 5 and {*map(len, groups)} == {1} and {group[0] for group in groups} == {4, 5}


@pytest.mark.parametrize(("cores", "text"), [([3], "3"), ([0, 1, 2, 3], "0-3"), ([8, 0, 1, 3], "0-1,3,8"), ([], "")])
def test_cores_are_named_by_ranges(cores: list[int], text: str) -> None:
    assert core_names(cores) == text
