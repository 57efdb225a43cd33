"""Kernels with one error each, which the sanitizers must catch; see tests/sanitize.py."""
