"""Fetch, verify, read and make data; app/layers and app/kernels never import it."""
