"""Time kernels and whole systems, sweep parameters, and profile runs. Only this package imports other frameworks."""
