"""Calibration on held-out data: conformal p-values and intervals, temperature, drift.

For the effect of its constants see benchmarks/validity.md and calibration.md.
"""
