"""Provide what all commands use at the terminal: options, one-line errors, formatted text and checked output files."""
