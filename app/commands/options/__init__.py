"""The options of each command. Importing them is cheap: ``--help`` and mistakes are answered without NumPy."""
