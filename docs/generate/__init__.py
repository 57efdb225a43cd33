"""Write the measured figures into the documents: ``python -m docs.generate``."""
