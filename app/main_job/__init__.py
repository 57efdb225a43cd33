"""Run the main job: classify a batch on GPU or CPU, check the labels, and measure the run."""
