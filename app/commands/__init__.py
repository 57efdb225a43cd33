"""Define the options of each command as a request, and name the module that runs it. ``--help`` needs no NumPy."""
