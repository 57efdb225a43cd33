"""What every room stands on: errors, interrupts, processes, the processor, the clock, precisions."""
