"""The inference application: networks, layers, kernels, session and report."""
