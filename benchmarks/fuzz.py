"""Fuzz every loader: `python benchmarks/fuzz.py --inputs 100000`. Ends with 1 where an input found a defect."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from fuzz.driver import NAMES, run

SLOW = {"model": 0.3, "checkpoint": 0.1, "estimator": 0.3, "folder": 0.3, "celeba": 0.3}
"""Share of a whole portion for loaders that take ten milliseconds an input or more."""


def main() -> int:
    """Share the inputs out, run each target in a process of its own, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", nargs="*", default=NAMES, choices=NAMES)
    options = parser.parse_args()
    shares = {name: SLOW.get(name, 1.0) for name in options.targets}
    portion = options.inputs / sum(shares.values())
    n_defects = n_inputs = 0
    print("| target | inputs | refused | accepted | slowest, s | more memory, MB | defects |\n" + "|---" * 7 + "|")
    began = time.monotonic()
    for name, share in shares.items():
        summaries, defects = run({name: int(portion * share) + 1}, options.seed)
        for found in summaries:
            cells = [f"{found[key]:,}" for key in ("n", "refused", "accepted", "slowest", "megabytes")]
            print(f"| {name} | {' | '.join(cells)} | {len(defects)} |", flush=True)
            n_inputs += found["n"]
        for defect in defects[:20]:
            print(json.dumps(defect), file=sys.stderr)
        n_defects += len(defects)
    print(f"\n{n_inputs:,} inputs, {n_defects} defects, {time.monotonic() - began:.0f} s")
    return 1 if n_defects else 0


if __name__ == "__main__":
    sys.exit(main())
