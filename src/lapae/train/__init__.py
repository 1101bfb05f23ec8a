"""Training: defaults that depend on the data, the loop, selection of weights, checkpoints, several processes."""
