"""Measuring: the ladder of kernels, parameter sweeps, profiles; frameworks are imported only here."""
