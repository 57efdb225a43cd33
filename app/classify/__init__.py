"""``classify``: shards of images, of any number and size, in; labels of each shard out. In constant memory."""
