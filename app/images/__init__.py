"""Classify users' pictures and arrays, and evaluate the answers: commands predict, evaluate and accuracy."""
