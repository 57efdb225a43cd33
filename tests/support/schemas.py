"""Check JSON documents against their descriptions in docs/schemas/."""

import importlib.util
from typing import Any


def mistakes(document: Any) -> list[str]:
    """Return where the document, as read from JSON, breaks its own description: one line each."""
    from docs.generate import figures

    _, name, _ = document["schema"].split("/")  # such as lenet5-inference/report/3
    return figures.mistakes(name, document)


def check_described(document: Any) -> None:
    """The document is as described. For tests on the card: where jsonschema is not installed, nothing is checked."""
    if importlib.util.find_spec("jsonschema") is not None:
        assert not mistakes(document)
