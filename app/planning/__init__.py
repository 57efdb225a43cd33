"""Which kernel serves which layers, in which buffers, with which parameters."""
