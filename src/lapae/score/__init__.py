"""How unusual a sample is: from a Prediction to one anomaly score.

What its constants are worth: benchmarks/adbench.md and outliers.md (tables), images.md, series.md and defects.md.
"""
