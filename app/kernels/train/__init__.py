"""Training's kernels, and the rows that describe them."""
