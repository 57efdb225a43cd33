"""Train on the GPU with the kernels app/kernels/train/train_*.cu."""
