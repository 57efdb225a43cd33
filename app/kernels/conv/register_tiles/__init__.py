"""Convolutions whose threads keep tiles of outputs in registers, step by step."""
