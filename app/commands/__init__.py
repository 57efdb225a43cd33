"""Define the options of each command as a dataclass, its request, and name the module that runs it: ``BODY``."""
