"""The site of the stored card, written once."""

from pathlib import Path

import pytest

from app.ladder.card import Card
from app.ladder.pages import write_site
from app.ladder.stored import introduction_pages, stored_card
from docs.generate.site import COMMAND


@pytest.fixture(scope="session")
def card() -> Card:
    return stored_card("lenet5")


@pytest.fixture(scope="session")
def site(card: Card, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    write_site(folder, card, COMMAND, introduction_pages())
    return folder
