"""Ten exercises in files, which ``main.py learn`` hands out and judges. ``solutions`` has a right kernel for each."""
