"""Judge a network's answers: metrics, comparison with another network, and the page that shows them."""
