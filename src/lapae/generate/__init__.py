"""New samples: rows of tables from similar rows, everything else from the density of latent codes.

The effect of its constants is measured in benchmarks/samples.md.
"""
