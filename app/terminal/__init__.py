"""What all commands share at the terminal: options, one-line errors, text, and the files that they write."""
