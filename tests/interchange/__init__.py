"""Foreign weights files."""
