"""What makes numbers hold on new data: conformal p-values and intervals, temperature, drift.

What its constants are worth: benchmarks/validity.md and calibration.md.
"""
