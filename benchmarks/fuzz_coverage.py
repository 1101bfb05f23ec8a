"""Fuzz a loader guided by coverage, with atheris (`pip install --group fuzz`).

    python benchmarks/fuzz_coverage.py npz --seconds 60

Starts from inputs of the seeded mutator; any error that is not ours, a hang or too much memory ends it with a crash
file in the current folder.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import warnings
from pathlib import Path

import atheris  # pyright: ignore[reportMissingImports]

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
with atheris.instrument_imports(include=["lapae.data", "lapae.runs.toml", "zipfile", "tomllib", "gzip"]):
    from fuzz.driver import NAMES
    from fuzz.targets import find

    from lapae.errors import DataError, LapaeError


def main() -> None:
    """Fuzz until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=NAMES)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        place, corpus = Path(folder), Path(folder) / "corpus"
        corpus.mkdir()
        target = find(options.target, place)
        for i in range(100):
            (corpus / str(i)).write_bytes(target.make(random.Random(i)))
        file = place / target.name

        def one(content: bytes) -> None:
            file.write_bytes(content)
            with contextlib.suppress(LapaeError, DataError):
                target.read(file)

        limits = [f"-max_total_time={options.seconds}", "-timeout=10", "-rss_limit_mb=4096", "-max_len=65536"]
        atheris.Setup([sys.argv[0], *limits, str(corpus)], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
