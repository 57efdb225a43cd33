"""Compare reports of one kind: find the rows that all of them timed, and judge the differences."""
