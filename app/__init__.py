"""The inference application: networks, layers, kernels, session and report."""

VERSION = "0.1.0"  # pyproject.toml reads the version here
