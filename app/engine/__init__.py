"""The one way in which images become labels: engines on the GPU and on the CPU, behind one interface."""
