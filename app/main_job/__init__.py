"""Run the main job on GPU or CPU, and measure the run."""
