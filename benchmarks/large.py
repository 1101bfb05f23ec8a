"""Large inputs: peak memory of training on and scoring many rows, and of training on a folder of 256x256 images.

    python benchmarks/large.py train --rows 2000000 10000000
    python benchmarks/large.py score --rows 100000 1000000
    python benchmarks/large.py images --size 256 --count 300

Each command runs in a process of its own; its peak is what the system says of it when it has ended.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COLUMNS = 20
FILE_ROWS = 1_000_000


def measured(arguments: list[str]) -> tuple[float, float, float]:
    """Run a `lapae` command; its seconds, its peak of resident memory in MB, and its seconds of processor time."""
    began = time.monotonic()
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-m", "lapae", *arguments])
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"lapae {' '.join(arguments)} ended with {status}")
    return time.monotonic() - began, usage.ru_maxrss / 1e3, usage.ru_utime + usage.ru_stime


def write_table(path: Path, n_rows: int) -> None:
    """Numbers with an index and a text column that is carried along, some cells empty."""
    chance = np.random.default_rng(0)
    with path.open("w") as file:
        file.write(",".join(["id", "site", *(f"c{i}" for i in range(COLUMNS))]) + "\n")
        for start in range(0, n_rows, 10_000):
            x = chance.normal(size=(min(10_000, n_rows - start), COLUMNS)).cumsum(1)
            for i, row in enumerate(x):
                file.write(f"{start + i},site {i % 7}," + ",".join(f"{value:.5g}" for value in row) + "\n")


def score(rows: list[int], predictive: str, out: list[str]) -> None:
    """Train on a small table, score larger ones."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        train = np.random.default_rng(1).normal(size=(2000, COLUMNS)).cumsum(1)
        names = ",".join(f"c{i}" for i in range(COLUMNS))
        np.savetxt(place / "train.csv", train, delimiter=",", header=names, comments="")
        options = ["--hidden", "64", "--epochs", "5", "--device", "cpu", "--no-verbose"]
        measured(["train", str(place / "train.csv"), *options, "--out", str(place / "run")])
        print("| rows | output | predictive | seconds | peak, MB |\n|---|---|---|---|---|")
        for n in rows:
            write_table(place / "new.csv", n)
            for suffix in out:
                result = place / f"scores{suffix}"
                given = [str(place / "run"), str(place / "new.csv"), "--out", str(result), "--predictive", predictive]
                seconds, peak, _ = measured(["score", *given, "--device", "cpu"])
                print(f"| {n:,} | {suffix} | {predictive} | {seconds:.0f} | {peak:.0f} |", flush=True)


def train(rows: list[int], group: int, place: Path, epochs: int | None) -> None:
    """Train on a folder of Parquet files of a million rows each, in row groups of `group` rows."""
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]

    print("| rows | processor seconds | peak, MB |\n|---|---|---|")
    for n in rows:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            chance = np.random.default_rng(0)
            mixing = chance.normal(size=(5, COLUMNS))
            for i, start in enumerate(range(0, n, FILE_ROWS)):
                m = min(FILE_ROWS, n - start)
                x = chance.normal(size=(m, 5)) @ mixing + 0.3 * chance.normal(size=(m, COLUMNS))
                table = pa.table({f"c{j}": x[:, j] for j in range(COLUMNS)})
                (Path(folder) / "rows").mkdir(exist_ok=True)
                parquet.write_table(table, Path(folder) / "rows" / f"{i:04d}.parquet", row_group_size=group)
            given = [str(Path(folder) / "rows"), "--out", str(Path(folder) / "run"), "--device", "cpu"]
            given += [] if epochs is None else ["--epochs", str(epochs)]
            _, peak, processor = measured(["train", *given])
            print(f"| {n:,} | {processor:.0f} | {peak:.0f} |", flush=True)


def images(size: int, count: int, hessian: str, extra: list[str]) -> None:
    """Smooth pictures of a few shapes and colours, as JPEG; one epoch of training and one prediction."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "images").mkdir()
        chance = np.random.default_rng(0)
        grid = np.linspace(-1, 1, size)
        for i in range(count):
            x, y, r = chance.uniform((-0.5, -0.5, 0.2), (0.5, 0.5, 0.6))
            disc = ((grid[:, None] - x) ** 2 + (grid[None] - y) ** 2 < r**2)[..., None]
            pixels = np.where(disc, chance.uniform(0, 255, 3), chance.uniform(0, 255, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(place / "images" / f"{i}.jpg")
        options = ["--network", "conv", "--hessian", hessian, "--image-size", str(size), "--epochs", "1", *extra]
        seconds, peak, _ = measured(
            ["train", str(place / "images"), *options, "--device", "cpu", "--out", str(place / "run")]
        )
        print(
            f"train: {count} images of {size}x{size}, hessian {hessian}: {seconds:.0f} s, peak {peak:.0f} MB",
            flush=True,
        )
        given = [str(place / "run"), str(place / "images"), "--out", str(place / "scores.csv"), "--n-samples", "10"]
        seconds, peak, _ = measured(["score", *given, "--device", "cpu"])
        print(f"score: {seconds:.0f} s, peak {peak:.0f} MB")


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    many = commands.add_parser("train")
    many.add_argument("--rows", type=int, nargs="+", default=[2_000_000, 10_000_000])
    many.add_argument("--group", type=int, default=FILE_ROWS)
    many.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()), help="182 MB for a million rows")
    many.add_argument("--epochs", type=int, help="default: those that see every row once")
    table = commands.add_parser("score")
    table.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    table.add_argument("--predictive", default="moments")
    table.add_argument("--out", nargs="+", default=[".csv", ".npy"])
    folder = commands.add_parser("images")
    folder.add_argument("--size", type=int, default=256)
    folder.add_argument("--count", type=int, default=300)
    folder.add_argument("--hessian", default="mixed")
    options, extra = parser.parse_known_args()
    if options.command == "train":
        train(options.rows, options.group, options.place, options.epochs)
    elif options.command == "score":
        score(options.rows, options.predictive, options.out)
    else:
        images(options.size, options.count, options.hessian, extra)


if __name__ == "__main__":
    main()
