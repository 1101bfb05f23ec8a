"""`lapae bench`."""

from __future__ import annotations

from collections.abc import Sequence

import tyro

from lapae.errors import ConfigError

BENCHES = {
    "curvature": "time and memory of every GGN approximation, beside peers that are installed",
    "train": "time of a training step of every method",
}


def main(arguments: Sequence[str]) -> int:
    """Choose a benchmark; each has flags of its own."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        lines = [f"  {name:<10} {text}" for name, text in BENCHES.items()]
        print("\n".join(["usage: lapae bench BENCHMARK ...", "", "benchmarks (--help explains each):", *lines]))
        return 0
    if name == "curvature":
        from lapae_paper.bench import curvature

        options = tyro.cli(curvature.CurvatureBench, args=list(arguments[1:]), prog="lapae bench curvature")
        return curvature.main(options)
    if name == "train":
        from lapae_paper.bench import train

        rows = train.run(tyro.cli(train.TrainBench, args=list(arguments[1:]), prog="lapae bench train"))
        for row in rows:
            print(f"{row['method']:<20} {row['ms']:9.3f} ms  {row['ratio']:6.2f} x")
        return 0
    raise ConfigError(f"unknown benchmark {name!r}: expected one of {', '.join(BENCHES)}")
