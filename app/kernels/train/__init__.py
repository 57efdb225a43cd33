"""Training's kernels, and their registry rows."""
