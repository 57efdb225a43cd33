"""Teach the ladder: one page for each step, written for one card's measurements, and the site that holds them."""
