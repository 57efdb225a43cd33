"""``main.py bench``: check every kernel against the reference, time it and compare it."""
