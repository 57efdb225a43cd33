"""The main job on GPU or CPU, and the measurements of a run."""
