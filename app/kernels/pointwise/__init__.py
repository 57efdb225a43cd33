"""Pooling, activations, softmax, argmax and enlarging, and the rows that describe them."""
