"""Matrix product kernels, and their registry rows."""
