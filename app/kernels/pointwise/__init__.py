"""Pooling, activations, softmax, argmax and enlarging, and their registry rows."""
