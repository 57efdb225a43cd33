"""CUDA kernels, one ``.cu`` file per idea, with the registry that lists them and the code that launches them."""
