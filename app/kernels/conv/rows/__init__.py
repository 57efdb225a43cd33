"""Define the registry rows of the convolutions, one module per way to divide a layer among threads."""
