"""Training on the GPU by the kernels app/kernels/train/train_*.cu."""
