"""Check every kernel against the reference, time it and compare it (``main.py bench``)."""
