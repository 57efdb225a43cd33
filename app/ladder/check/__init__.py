"""``main.py check``: test one kernel on small shapes, on the CPU or on the card."""
