"""Kernels that take two layers at once, and the rows that describe them."""
