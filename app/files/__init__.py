"""Read files strictly, write them atomically, read HDF5 in a separate process, and find the user's cache."""
