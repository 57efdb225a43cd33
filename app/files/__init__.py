"""Files: strict readers, atomic writers, HDF5 in a separate process, and the user's cache."""
