"""Train networks: gradients of every layer, optimisers, the training loop, checkpoints, and the command."""
