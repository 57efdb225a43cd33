"""``main.py cache``: list what lies in the cache, or clear it."""

from collections.abc import Mapping
from typing import Any

from app.commands.options.cache import CacheRequest
from app.files.writing import cache_dir
from app.operate.cache_content import clear, contents
from app.report import publish
from app.text import Column, format_age, format_bytes, paragraph, table

SCHEMA = "lenet5-inference/cache/1"
COLUMNS = [Column("kind", left=True), Column("files"), Column("size"), Column("age", left=True)]


def cache(request: CacheRequest) -> int:
    """List the files by kind, or remove those that are made again. Returns 0; raises UserError."""
    found = clear() if request.clear else contents()
    document = {
        "schema": SCHEMA,
        "folder": str(cache_dir()),
        "cleared": request.clear,
        "kinds": [content.document for content in found],
    }
    publish(document, as_text, request.output)
    return 0


def as_text(document: Mapping[str, Any], width: int) -> str:
    """Format the document: a row for each kind of file."""
    kinds = document["kinds"]
    files, nbytes = (sum(kind[name] for kind in kinds) for name in ("files", "bytes"))
    what = "removed from" if document["cleared"] else "in"
    rows = [[kind["kind"], f"{kind['files']:,}", format_bytes(kind["bytes"]), _age(kind)] for kind in kinds]
    head = f"{files:,} files, {format_bytes(nbytes)} {what} {document['folder']}"
    return "\n".join([*paragraph(head, width), *table(COLUMNS, rows, width)])


def _age(kind: Mapping[str, Any]) -> str:
    if kind["oldest_s"] is None:
        return ""
    ages = [format_age(kind[name]) for name in ("newest_s", "oldest_s")]
    return " to ".join(dict.fromkeys(ages))
