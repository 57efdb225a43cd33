"""``main.py bench``: every kernel checked against the reference, timed and compared."""
