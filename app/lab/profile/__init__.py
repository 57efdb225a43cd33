"""``main.py profile``: time the kernels, copies and API calls of a run; hardware counters; a timeline."""
