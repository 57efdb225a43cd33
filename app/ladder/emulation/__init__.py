"""Kernels on the processor: compiled by the host's C++ compiler and run thread by thread, as ``host_cuda.h`` says.

Slow, and blind to what only a card can show; but index arithmetic, edges, barriers, descriptors and splits are the
kernels' own. Functions of PTX alone have a C++ function in their place, in the headers here.
"""
