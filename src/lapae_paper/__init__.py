"""The paper's experiments and the benchmarks beside peers: `lapae reproduce` and `lapae bench`."""
