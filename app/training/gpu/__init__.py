"""Training's arithmetic on the GPU, by the kernels app/kernels/train_*.cu."""
