"""Compare reports of one kind: rows that were timed in all, and whether those of the second side are faster."""
