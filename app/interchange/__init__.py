"""Read and write other systems' weights files: from bytes to named arrays and a network, and back."""
