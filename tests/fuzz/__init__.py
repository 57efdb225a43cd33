"""Files that are broken in thousands of ways, one module a reader; ``make fuzz`` runs more than the tests do."""
