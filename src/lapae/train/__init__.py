"""One training loop for all methods, its checkpoints and its progress."""
