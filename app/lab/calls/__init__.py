"""Time calls of ``Classifier``, as a program makes them, and of PyTorch (``python -m app.lab.calls``)."""
