"""``main.py bench --peers``: compare the application with PyTorch and JAX."""
