"""Compare reports of one kind: find the rows timed in all of them, and judge whether the second side is faster."""
