"""The options of each command, as its request, and where its body is. Imports are cheap: ``--help`` needs no NumPy."""
