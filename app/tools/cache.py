"""``main.py cache``: list what lies in the cache, or clear it."""

from app.commands.cache import CacheRequest
from app.files.writing import cache_dir
from app.records.operate import Cache, CachedFiles
from app.terminal.output import publish
from app.terminal.text import Column, format_age, format_bytes, paragraph, table
from app.tools.cache_content import clear, contents

COLUMNS = [Column("kind", left=True), Column("files"), Column("size"), Column("age", left=True)]


def cache(request: CacheRequest) -> int:
    """List the files by kind, or remove those that are made again. Returns 0; raises UserError."""
    found = clear() if request.clear else contents()
    document: Cache = {
        "schema": "lenet5-inference/cache/1",
        "folder": str(cache_dir()),
        "cleared": request.clear,
        "kinds": [content.document for content in found],
    }
    publish(document, as_text, request.output)
    return 0


def as_text(document: Cache, width: int) -> str:
    """Format the document: a row for each kind of file."""
    kinds = document["kinds"]
    files, nbytes = sum(kind["files"] for kind in kinds), sum(kind["bytes"] for kind in kinds)
    what = "removed from" if document["cleared"] else "in"
    rows = [[kind["kind"], f"{kind['files']:,}", format_bytes(kind["bytes"]), _age(kind)] for kind in kinds]
    head = f"{files:,} files, {format_bytes(nbytes)} {what} {document['folder']}"
    return "\n".join([*paragraph(head, width), *table(COLUMNS, rows, width)])


def _age(kind: CachedFiles) -> str:
    ages = [format_age(age) for age in (kind["newest_s"], kind["oldest_s"]) if age is not None]
    return " to ".join(dict.fromkeys(ages))
