"""What a command shares with the terminal: options, errors in one line, text, files that it writes."""
