"""CUDA kernels: one ``.cu`` file an idea, the registry that lists them, the compiler and the launch gate."""
