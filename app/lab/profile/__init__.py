"""Time the kernels, copies and API calls of a run, read hardware counters, draw a timeline (``main.py profile``)."""
