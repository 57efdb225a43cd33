"""Hold the kernels that compute two layers in one launch, and their registry rows."""
