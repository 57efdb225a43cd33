"""Engines that classify images on the GPU and on the CPU, behind one interface."""
