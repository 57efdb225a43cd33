"""The Python interface: ``Classifier`` returns labels, logits and probabilities of image arrays."""

from app.engine.classifier.classifier import Classifier

__all__ = ["Classifier"]
