"""Test a kernel on small shapes, on the CPU or on the GPU (``main.py check``)."""
