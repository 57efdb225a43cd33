"""Describe networks as data, load their weights, compute a float64 reference, and judge a run's labels by it."""
