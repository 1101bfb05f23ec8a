"""New samples: rows of tables from rows that are alike, everything else from the density of latent codes.

What its constants are worth: benchmarks/samples.md.
"""
