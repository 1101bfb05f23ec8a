"""A fault at every step of every command that writes, counted.

    python benchmarks/faults.py

A step is a call that creates, writes, renames, syncs, closes or removes something (`tests/faults/steps.py`). At each in
turn the call fails, and in another process the process is killed. Then what is on the disk must be the old or the new
state, and the next command must end where an undisturbed one does (`tests/faults/commands.py`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from faults.commands import COMMANDS, Harness

HEADER = "| command | steps | of which | fails: said, exit 2 | fails: went on, exit 0 | killed | defects |"


def main() -> None:
    """Print a row for each command, and what went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", default=list(COMMANDS), help=f"of {', '.join(COMMANDS)}; all by default")
    names = parser.parse_args().commands
    print(HEADER, "|" + "---|" * 7, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(Path(folder) / "faults")
        for name in names:
            steps = harness.steps(name)
            codes, defects = Counter[int](), 0
            for fault in ("fail", "kill"):
                for at in range(1, len(steps) + 1):
                    try:
                        codes[harness.disturb(name, at, fault)] += 1
                    except AssertionError as error:
                        defects += 1
                        print(f"{steps[at - 1]}: {error}", file=sys.stderr, flush=True)
            kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(Counter(steps).items()))
            cells = [name, len(steps), kinds, codes[2], codes[0], codes[-9], defects]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        harness.server.close()


if __name__ == "__main__":
    main()
