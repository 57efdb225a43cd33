"""Choose the kernel for each layer or group of layers, its buffers and its parameters: ``plan.plan`` does it all."""
