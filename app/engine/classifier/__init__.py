"""Provide the Python interface: ``Classifier`` returns labels, logits and probabilities of arrays of images."""

from app.engine.classifier.classifier import Classifier

__all__ = ["Classifier"]
