"""Fetch, verify, read and convert the images and labels that networks classify."""
