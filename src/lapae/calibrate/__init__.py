"""What makes numbers hold on new data: conformal p-values and intervals, temperature, drift."""
