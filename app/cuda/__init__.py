"""Devices, their memory, events and graphs, and the run-time compiler."""
