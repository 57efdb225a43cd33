"""Running a plan: sessions, streams and buffers, and how a run is timed."""
