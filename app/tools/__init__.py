"""Operating: what lies in the cache, and what this machine has and lacks."""
