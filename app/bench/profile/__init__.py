"""``main.py profile``: spans of a run, API calls, hardware counters, a timeline."""
