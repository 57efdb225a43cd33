"""Time every kernel, sweep parameters, profile runs and time other frameworks, which only this package imports."""
