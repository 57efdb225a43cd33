"""Users' kernels: read a .cu file with a header, check and time it as one of the ladder's, and rank the times."""
