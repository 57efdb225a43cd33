"""Choose GPUs, compile kernels at run time, and provide device memory, events, streams and CUDA graphs."""
