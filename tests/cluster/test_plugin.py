"""The task that runs on a worker, without a cluster."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from app.cluster import plugin


class CUDARuntimeError(Exception):
    """As CuPy's: told by its name."""

    status = 700


@pytest.mark.parametrize("opens", [False, True])
def test_a_card_that_is_lost_ends_the_process(opens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the engine opens, and when it works: no later call of the process would succeed."""
    engine = Mock(return_value=Mock(side_effect=CUDARuntimeError)) if opens else Mock(side_effect=CUDARuntimeError)
    monkeypatch.setattr(plugin, "get_worker", lambda: SimpleNamespace(plugins={"name": SimpleNamespace(engine=engine)}))
    monkeypatch.setattr(plugin.os, "_exit", Mock(side_effect=SystemExit))
    with pytest.raises(SystemExit):
        plugin.answer("name", [1])
    plugin.os._exit.assert_called_once_with(plugin.LOST)  # type: ignore[attr-defined]
