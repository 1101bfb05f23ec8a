"""Speed and memory of the curvature and of training, beside peers that are installed: `lapae bench`."""
