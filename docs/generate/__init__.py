"""Write measured figures into the documents in docs/: ``python -m docs.generate``."""
