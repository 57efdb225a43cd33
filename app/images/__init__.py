"""Classify people's pictures and arrays, and judge the answers: predict, evaluate, accuracy."""
