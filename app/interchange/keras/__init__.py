"""Read the models that Keras saves: chain.py orders the layers, layers.py turns them into ours."""
