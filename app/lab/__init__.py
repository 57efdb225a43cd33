"""Measurements: the ladder of kernels, parameter sweeps, profiles. Frameworks are imported only here."""
