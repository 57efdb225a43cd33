"""Define the CUDA kernels, one ``.cu`` file per idea, the registry that lists them and the code that launches them."""
