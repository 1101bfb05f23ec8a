"""How unusual a sample is: from a Prediction to one anomaly score."""
