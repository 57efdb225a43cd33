"""Files: strict readers, writing whole or not at all, HDF5 in a process of its own, and the cache of the user."""
