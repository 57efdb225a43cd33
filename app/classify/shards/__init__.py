"""Read files of images (shards) of any size, at any position, in constant memory.

``find_shards`` lists the files, ``open_shard`` reads their headers, ``Shard.open_reader`` reads images and labels.
"""

from app.classify.shards.opening import find_shards, open_shard
from app.classify.shards.shard import Shard, ShardError, ShardReader

__all__ = ["Shard", "ShardError", "ShardReader", "find_shards", "open_shard"]
