"""Shards: files of images of any size, read by position within constant memory.

``find_shards`` lists the files, ``open_shard`` reads their headers, ``Shard.reader`` reads images and labels.
"""

from app.shards.finding import find_shards
from app.shards.opening import open_shard
from app.shards.reader import Reader
from app.shards.shard import Shard, ShardError

__all__ = ["Reader", "Shard", "ShardError", "find_shards", "open_shard"]
