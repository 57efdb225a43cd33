"""Find picture files, read them with Pillow, and prepare them as the images of Fashion-MNIST were prepared."""
