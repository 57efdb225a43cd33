"""Files: strict readers, atomic writers, HDF5 in a process of its own, and the user's cache."""
