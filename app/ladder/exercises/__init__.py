"""Hand out and judge ten exercises (``main.py learn``); each is a .cu file, and ``solutions`` has a right kernel."""
