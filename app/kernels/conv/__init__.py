"""Convolution kernels: one ``.cu`` file per idea, numbered in reading order; ``rows/`` holds their registry rows."""
