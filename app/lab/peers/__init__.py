"""Compare the application with PyTorch and JAX (``main.py bench --peers``)."""
