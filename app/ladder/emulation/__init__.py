"""Emulate kernels on the CPU: the host's C++ compiler compiles them, and ``host_cuda.h`` runs them thread by thread.

Emulation is slow and cannot show what only a card shows, such as races. But it runs the kernels' own code for index
arithmetic, edges, barriers, descriptors and splits. C++ functions in the headers of this folder replace functions that
consist of PTX.
"""
