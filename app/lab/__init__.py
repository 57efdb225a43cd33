"""Measure: time kernels and whole programs, sweep parameters, profile runs, compare with other frameworks.

Only app.ladder may import this: see tests/test_architecture.py.
"""
