"""How unusual a sample is: from a Prediction to one anomaly score.

The effect of its constants is measured in benchmarks/adbench.md and outliers.md (tables), images.md, series.md and
defects.md.
"""
