"""Time calls of ``Classifier`` as a program sees them, beside PyTorch (``python -m app.lab.calls``)."""
