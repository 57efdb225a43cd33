"""Matrix product kernels, and the rows that describe them."""
