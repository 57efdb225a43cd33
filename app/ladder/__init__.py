"""Teach the ladder of kernels: one HTML page for each step, with the measurements of one card."""
