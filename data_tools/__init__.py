"""Fetch, verify, read and convert the data that networks classify."""
