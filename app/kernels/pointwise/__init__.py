"""Hold the kernels and registry rows of pooling, activations, softmax, argmax and resizing."""
