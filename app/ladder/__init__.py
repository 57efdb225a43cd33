"""Explain the kernels as a ladder of steps, each of which improves an earlier one: pages, commands and exercises."""
