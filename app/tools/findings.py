"""What ``doctor`` finds: one line of a bug report each, with the remedy where something is missing."""

from app.records.operate import Area, Finding


def finding(area: Area, name: str, value: str, needed_for: str = "", remedy: str = "") -> Finding:
    """Return one fact. needed_for: what does not work without it; remedy: what to do; empty if nothing is missing."""
    return {
        "area": area,
        "name": name,
        "value": value,
        "needed_for": needed_for,
        "remedy": remedy,
        "missing": bool(remedy),
    }
