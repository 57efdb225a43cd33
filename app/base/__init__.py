"""Provide what every other room uses: errors, signals, processes, CPU cores, clocks, precisions, frozen dataclasses."""
