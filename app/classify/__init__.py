"""Label shards (files of images) of any number and size in constant memory: the command ``classify``."""
