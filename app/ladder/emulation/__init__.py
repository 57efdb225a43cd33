"""Emulate kernels on the CPU: the host's C++ compiler compiles them, and ``host_cuda.h`` runs them thread by thread.

Emulation is slow, and some errors, such as races, show only on a GPU. But the kernel's own code for index arithmetic,
edges, barriers, descriptors and splits runs. C++ functions in the headers of this folder replace functions written in
PTX.
"""
