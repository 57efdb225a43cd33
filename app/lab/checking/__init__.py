"""Check kernels: small problems with known results, and runs of a kernel on the GPU."""
