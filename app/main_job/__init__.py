"""The main job on either device, and the measurements of a run."""
