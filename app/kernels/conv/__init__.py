"""Convolution kernels: one ``.cu`` file an idea, and the rows that describe them."""
