"""Classify pictures and arrays of images: read the inputs, and write the answers to files."""
