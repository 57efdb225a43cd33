"""Describe networks as data, with weights, a float64 reference and verdicts on labels."""
