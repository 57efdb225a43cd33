"""Kernels that compute two layers in one launch, and their registry rows."""
