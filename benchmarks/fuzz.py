"""Fuzz every loader: `python benchmarks/fuzz.py --inputs 100000`. Ends with 1 where an input found a defect."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
SLOW = {"model": 0.3, "checkpoint": 0.1, "estimator": 0.3, "folder": 0.3, "celeba": 0.3}
"""Share of a whole portion for loaders that take tens of milliseconds an input."""
NAMES = (
    *("idx", "npy", "npz", "csv", "toml", "celeba", "png", "jpg", "gif", "bmp", "tiff", "webp", "ppm", "pgm", "folder"),
    *("safetensors", "model", "checkpoint", "estimator", "metrics"),
)


def run(target: str, count: int, seed: int, first: int = 0) -> tuple[dict | None, list[dict]]:
    """Fuzz one target; its summary (None where the process died) and its defects."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [target, str(first), str(count), str(seed), folder]
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-m", "fuzz.driver", *arguments],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        defects = [line for line in lines if "defect" in line]
        summary = next((line for line in lines if "target" in line), None)
        if summary is None:
            last = [path for path in Path(folder).iterdir() if path.name.startswith("x.")]
            content = last[0].read_bytes()[:4096].hex() if last else ""
            what = f"the process ended with {done.returncode}: {done.stderr[-1500:]}"
            defects.append({"defect": what, "input": None, "hex": content})
    return summary, defects


def main() -> int:
    """Share the inputs out, run, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", nargs="*", default=NAMES)
    options = parser.parse_args()
    shares = {name: SLOW.get(name, 1.0) for name in options.targets}
    portion = options.inputs / sum(shares.values())
    n_defects = n_inputs = 0
    print("| target | inputs | refused | accepted | slowest, s | more memory, MB | defects |\n" + "|---" * 7 + "|")
    began = time.monotonic()
    for name, share in shares.items():
        summary, defects = run(name, int(portion * share) + 1, options.seed)
        cells = [summary[key] if summary else "?" for key in ("n", "refused", "accepted", "slowest", "megabytes")]
        print(
            f"| {name} | "
            + " | ".join(f"{c:,}" if isinstance(c, int) else str(c) for c in cells)
            + f" | {len(defects)} |",
            flush=True,
        )
        for defect in defects[:20]:
            print(json.dumps(defect), file=sys.stderr)
        n_defects += len(defects)
        n_inputs += summary["n"] if summary else 0
    print(f"\n{n_inputs:,} inputs, {n_defects} defects, {time.monotonic() - began:.0f} s")
    return 1 if n_defects else 0


if __name__ == "__main__":
    sys.exit(main())
