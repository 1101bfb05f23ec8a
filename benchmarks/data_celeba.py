"""How many CelebA images a minute are decoded into the cache: `python benchmarks/data_celeba.py [DATA_DIR]`."""

from __future__ import annotations

import os
import sys
import tempfile
import time

from lapae.data import load


def main() -> None:
    data_dir = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as cache:
        os.environ["LAPAE_CACHE"] = cache
        seconds = []
        for _ in range(2):  # the first fills the cache, the second maps it
            start = time.perf_counter()
            data = load("celeba", data_dir=data_dir)
            seconds.append(time.perf_counter() - start)
    n = len(data.train) + len(data.valid) + len(data.test)
    print(f"{n:,} images in {seconds[0]:.2f} s on {os.cpu_count()} cores: {60 * n / seconds[0]:,.0f} images a minute")
    print(f"from the cache: {seconds[1]:.2f} s")


if __name__ == "__main__":
    main()
