"""The command ``classify``: label shards of images, of any number and size, in constant memory."""
