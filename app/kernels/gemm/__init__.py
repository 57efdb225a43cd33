"""Hold the matrix product kernels and their registry rows."""
