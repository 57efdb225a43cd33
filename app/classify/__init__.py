"""Label the images of shards, files of any number and size, in constant memory: the command ``classify``."""
