"""Run commands about files and machines: the cache, this machine, networks, kernels, import and export."""
