"""Evaluate a network's answers: metrics, comparison with another network, and the HTML page that shows them."""
