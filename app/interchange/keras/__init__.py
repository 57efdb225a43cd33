"""Read models that Keras saved: chain.py orders the layers, and layers.py converts them to this project's layers."""
