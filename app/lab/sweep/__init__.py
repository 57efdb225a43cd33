"""Time a kernel over a grid of its parameters, or the main job over streams and chunk sizes (``main.py sweep``)."""
