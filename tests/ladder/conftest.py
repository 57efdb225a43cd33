"""The steps by name and as cases, and the site of the stored card, written once."""

from pathlib import Path

import pytest

from app.ladder.card import Card
from app.ladder.lessons import all_steps
from app.ladder.pages import write_site
from app.ladder.playground import find_samples, playground_page
from app.ladder.stored import introduction_pages, stored_card
from data_tools.fashion_mnist import Split
from docs.generate.site import COMMAND
from tests.support.outside import first_hundred_alone

BY_NAME = {step.page_name: step for step in all_steps()}
STEPS = pytest.mark.parametrize("step", all_steps(), ids=lambda step: step.page_name)


@pytest.fixture(scope="session")
def card() -> Card:
    return stored_card("lenet5")


@pytest.fixture(scope="session")
def site(card: Card, samples: Split, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    write_site(folder, card, COMMAND, [*introduction_pages(), playground_page(samples)])
    return folder


@pytest.fixture(scope="session")
def samples() -> Split:
    """The first hundred test images."""
    with pytest.MonkeyPatch.context() as patch:
        first_hundred_alone(patch)
        found = find_samples()
    assert found is not None
    return found
