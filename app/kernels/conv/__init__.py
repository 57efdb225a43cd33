"""Convolution kernels: one ``.cu`` file per idea, and their registry rows."""
