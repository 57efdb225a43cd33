"""Test one kernel on small shapes, on the CPU or on the card (``main.py check``)."""
