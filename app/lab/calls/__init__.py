"""``python -m app.lab.calls``: time what a program sees that calls ``Classifier``, beside PyTorch."""
