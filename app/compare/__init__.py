"""Compare two reports of one kind: rows that were timed in both, and whether the second is faster."""
