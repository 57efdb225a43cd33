"""Emulate kernels on the CPU: the host's C++ compiler compiles them, and ``host_cuda.h`` runs them thread by thread.

This is slow, and blind to what only a card can show. But index arithmetic, edges, barriers, descriptors and splits are
the kernels' code. Functions that consist of PTX are replaced by C++ functions in the headers here.
"""
