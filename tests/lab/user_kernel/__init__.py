"""Tests of kernels in files outside the tree."""
