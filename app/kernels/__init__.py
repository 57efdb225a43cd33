"""CUDA kernels: one ``.cu`` file per idea, the registry that lists them, and their launches."""
