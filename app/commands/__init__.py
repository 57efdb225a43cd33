"""Each command's request (its options) and the place of its body. Imports are cheap: ``--help`` needs no NumPy."""
