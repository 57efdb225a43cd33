"""Store the times of the peers' settings as soon as they are measured, so that no setting is tried twice.

A card has a shipped file, and a file in the user's cache that overrides it. Times of other versions of a peer's
packages are ignored.
"""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from app.files.cache import cache_dir, is_trusted, write_private_file
from app.files.reading import may_exist, read_json
from app.files.writing import json_text
from app.lab.document import FIGURES
from app.network.network import Network
from app.planning.tuning import table_file_name
from app.records.derive import check_for_type
from app.records.peers import PeerSettings, Search

Key = tuple[object, ...]


class Searches:
    """The stored times of the peers' settings on one card. software: peer → versions of its installed packages."""

    def __init__(self, card: str, software: Mapping[str, dict[str, str]]) -> None:
        self._card, self._software = card, software
        self._path = cache_dir() / "peers" / table_file_name(card)
        self._found: dict[Key, Search] = {}
        self._merge_stored_searches(FIGURES / f"peers_{table_file_name(card)}")
        self._merge_stored_searches(self._path)

    def find(self, network: Network, precision: str, images: int, engine: str) -> Search:
        """Return the times and failures of the settings of the peer ``engine``, stored for this batch; perhaps none."""
        new: Search = {
            "network": network.name,
            "digest": network.digest,
            "precision": precision,
            "images": images,
            "engine": engine,
            "software": self._software[engine],
            "ms": {},
            "failed": {},
        }
        return self._found.get(_search_key(new), new)

    def add(self, search: Search, setting: str, ms: list[float], reason: str) -> None:
        """Store a setting's times, ``ms`` = [on the card, end to end], or if [] the ``reason``. Raises UserError.

        Times that other processes stored meanwhile for cards of the same name stay in the file.
        """
        known = self._found.get(_search_key(search), search)  # another object, if it was read after ``find``
        search["ms"], search["failed"] = known["ms"] | search["ms"], known["failed"] | search["failed"]
        self._found[_search_key(search)] = search
        self._merge_stored_searches(self._path)
        if ms:
            search["ms"][setting] = [round(one, 5) for one in ms]
        else:
            search["failed"][setting] = reason
            _drop_times_of_failed_settings(search)
        write_private_file(self._path, json_text(self.to_document([*self._found.values()])))

    def to_document(self, searches: list[Search]) -> PeerSettings:
        """Return the JSON document of these searches."""
        return {"schema": "lenet5-inference/peer-settings/1", "card": self._card, "searches": searches}

    def _merge_stored_searches(self, path: Path) -> None:
        if may_exist(path) and (path != self._path or is_trusted(path)):
            stored: PeerSettings = read_json(path, check_for_type(PeerSettings), "delete it, and search again")
            for search in stored["searches"]:
                known = self._found.setdefault(_search_key(search), search)
                known["ms"] |= search["ms"]
                known["failed"] |= search["failed"]
                _drop_times_of_failed_settings(known)


def _drop_times_of_failed_settings(search: Search) -> None:
    """Remove from ``search`` the times of settings that failed in a later run."""
    for setting in search["failed"]:
        search["ms"].pop(setting, None)


def _search_key(search: Search) -> Key:
    return *(search[name] for name in ("digest", "precision", "images", "engine")), *sorted(search["software"].items())


def fastest_settings(searches: Sequence[Search], settings: Mapping[str, Container[str]]) -> list[tuple[str, str]]:
    """Return (peer, setting) of the fastest on the card and of the fastest end to end; one pair if they are equal.

    settings: each peer's settings to consider; a file may contain others.
    """
    ran = [
        (search["engine"], setting, ms)
        for search in searches
        for setting, ms in search["ms"].items()
        if setting in settings[search["engine"]]
    ]
    best = [min(ran, key=lambda one: one[2][measure]) for measure in (0, 1) if ran]
    return list(dict.fromkeys((engine, setting) for engine, setting, _ in best))
