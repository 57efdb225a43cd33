"""``main.py sweep``: a kernel over the grid of its parameters, and the pipeline over its own."""
