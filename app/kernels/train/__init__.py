"""Hold the kernels of training and their registry rows."""
