"""Speed and memory of the curvature and of training, compared with installed peers: `lapae bench`."""
