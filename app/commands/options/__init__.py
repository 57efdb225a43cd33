"""What each command takes. Light: ``--help`` and mistakes are answered without NumPy."""
