"""Hold the convolution kernels: one ``.cu`` file per idea, numbered in reading order; rows/ has their rows."""
