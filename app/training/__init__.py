"""Training: gradients of every layer, optimisers, the loop with its checkpoints, and the command."""
