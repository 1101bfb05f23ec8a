"""Training: defaults that depend on the data, the loop, selection of weights, checkpoints, several processes.

For the effect of its constants see benchmarks/pca.md (does training find more than principal components?) and
adbench.md.
"""
