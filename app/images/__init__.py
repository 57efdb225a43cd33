"""Classify users' pictures and arrays, and evaluate the answers: predict, evaluate, accuracy."""
