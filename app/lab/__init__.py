"""Measure: every kernel, parameter sweeps, profiles, other systems. Only this room imports other frameworks."""
