"""Training: defaults that depend on the data, the loop, selection of weights, checkpoints, several processes.

What its constants are worth: benchmarks/pca.md (does training find more than principal components?) and adbench.md.
"""
