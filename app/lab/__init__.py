"""Measure: time kernels and whole programs, sweep parameters, profile runs, compare with other frameworks."""
