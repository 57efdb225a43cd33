"""The machine: the device, its memory, the run-time compiler, captured graphs."""
