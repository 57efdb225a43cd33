"""CUDA kernels: one ``.cu`` file per idea, the registry that lists them, the compiler and the launch gate."""
