"""Fixtures of these tests: a card with the stored figures, and the site of HTML pages that shows it."""

from pathlib import Path

import pytest

from app.ladder.card import Card
from app.ladder.lessons import all_steps
from app.ladder.pages import write_site
from app.ladder.playground import find_test_images, playground_page
from app.ladder.stored import introduction_pages, load_stored_card
from data_tools.fashion_mnist import Split
from docs.generate.site import COMMAND
from tests.support.outside import first_hundred_alone

BY_NAME = {step.page_name: step for step in all_steps()}
STEPS = pytest.mark.parametrize("step", all_steps(), ids=lambda step: step.page_name)


@pytest.fixture(scope="session")
def card() -> Card:
    """Return the stored figures of lenet5 and fa19."""
    return load_stored_card("lenet5")


@pytest.fixture(scope="session")
def site(card: Card, samples: Split, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the site of the stored card, once; return its folder."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    write_site(folder, card, COMMAND, [*introduction_pages(), playground_page(samples)])
    return folder


@pytest.fixture(scope="session")
def samples() -> Split:
    """Return the first hundred test images and their labels."""
    with pytest.MonkeyPatch.context() as patch:
        first_hundred_alone(patch)
        found = find_test_images()
    assert found is not None
    return found
