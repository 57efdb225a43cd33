"""``main.py sweep``: time a kernel over the grid of its parameters, or the pipeline over streams and chunk sizes."""
