"""What every other room may import: errors, interrupts, processes, the processor, the clock, precisions,
frozen dataclasses."""
