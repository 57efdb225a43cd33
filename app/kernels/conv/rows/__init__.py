"""Registry rows of the convolutions, by the way to cut a layer into threads."""
