"""Run a plan: sessions, streams and buffers, and the timing of a run."""
