"""``main.py evaluate``: its options."""

from app.evaluate.request import EvaluateRequest

__all__ = ["EPILOG", "EvaluateRequest"]

EPILOG = """\
examples:
  python main.py evaluate                    lenet5 on Fashion-MNIST's test set
  python main.py evaluate --network k7 --html k7.html --json k7.json
                                             also as a page and as JSON
  python main.py evaluate --weights mine.h5 --data x.gz --labels y.gz
                                             your own weights and images
  python main.py evaluate --against mlp      which of two networks is better
  python main.py evaluate --against fp16     which answers fp16 changes (GPU)
  python main.py evaluate --against new.h5 --data images.gz
                                             changed answers, without labels

evaluate prints precision, recall and F1 of each class, the confusion matrix,
how reliable the probabilities are, and the most confident mistakes.
docs/evaluate.md explains the figures.
"""
