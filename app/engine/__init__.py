"""Classify images on the GPU or on the CPU, by engines with one interface."""
