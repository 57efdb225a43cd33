"""Measurements whose results documents quote: ``python -m docs.measure.NAME``."""
