"""Networks as data, their weights, the float64 reference and the two verdicts on labels."""
