"""What is computed: networks as data, weights, the float64 reference, the accuracy check."""
