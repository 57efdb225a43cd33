"""Files broken in thousands of ways, one module per reader; ``make fuzz`` runs more cases than the tests do."""
