"""Kernels with one error each, which the sanitizers must catch; see sanitize.sh."""
