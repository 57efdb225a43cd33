"""``main.py profile``: kernels and copies of a run, API calls, hardware counters, a timeline."""
