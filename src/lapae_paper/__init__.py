"""The paper's experiments, and benchmarks with other packages for comparison: `lapae reproduce` and `lapae bench`."""
