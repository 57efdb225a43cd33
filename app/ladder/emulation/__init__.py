"""Emulate kernels on the CPU: the host's C++ compiler compiles them, and ``host_cuda.h`` runs them thread by thread.

Emulation is slow and cannot show what only a card shows, such as races. But index arithmetic, edges, barriers,
descriptors and splits are the code of the kernels. C++ functions in the headers here replace functions that consist of
PTX.
"""
