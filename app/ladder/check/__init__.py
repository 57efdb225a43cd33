"""``main.py check``: is one kernel right? On small shapes, on the processor or on the card."""
