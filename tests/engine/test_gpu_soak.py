"""Run the soak test for ten seconds; ``make soak`` runs it for ten minutes."""

import re

import pytest

from tests import soak

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def test_engines_in_two_threads_give_the_bits_of_one() -> None:
    batches, differences = soak.soak(10)
    assert differences == []
    for route in soak.ROUTES[:-1]:  # cuBLAS may not be installed
        assert batches[route] > 0, f"{route}: {batches}"


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    make = soak.SharedData.__init__

    def other_expectations(self: soak.SharedData, seed: int) -> None:
        make(self, seed)
        for logits in self.logits.values():
            logits.view("uint8")[:, 0] ^= 1  # flips the lowest bit

    monkeypatch.setattr(soak.SharedData, "__init__", other_expectations)
    assert soak.main(["--seconds", "2"]) == 1
    assert re.search(r" batches, [1-9]\d* differences\n$", capsys.readouterr().out)
