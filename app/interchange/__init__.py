"""Foreign weights files: bytes to named arrays and a network, and back."""
