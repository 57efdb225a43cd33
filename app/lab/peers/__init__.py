"""``main.py bench --peers``: the application beside PyTorch and JAX."""
