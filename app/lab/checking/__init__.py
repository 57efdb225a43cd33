"""Compare kernels with correct results on small problems: their definition, and runs on the GPU."""
