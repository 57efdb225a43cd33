"""Classify pictures and arrays of images: where images come from, and the files that take the answers."""
