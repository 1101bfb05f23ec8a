"""Runs targets on many inputs in a process of its own, under limits of memory and time.

    python -m fuzz.driver FOLDER SEED TARGET:COUNT …    (in tests/; JSON lines on stdout)

Input number i of a target depends on the seed and i alone. What is wrong with one: an error that is not ours, more
than `SECONDS`, no memory left under the limit. A crash ends the process; its input is the file in FOLDER.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

NAMES = (
    *("idx", "npy", "npz", "csv", "toml", "celeba", "png", "jpg", "gif", "bmp", "tiff", "webp", "ppm", "pgm", "folder"),
    *("safetensors", "model", "checkpoint", "estimator", "metrics"),
)
SECONDS = 10
"""Of the processor: a busy machine makes nothing wrong."""
WAIT = 20
"""Times as long by the clock, for what only waits."""
MEMORY = 2**30
"""Bytes above what the process holds with everything imported."""


class TooSlow(BaseException):
    """Not an Exception: no loader may take it for damage of the file."""


def run(
    counts: dict[str, int], seed: int, seconds: float = SECONDS
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Fuzz targets in one process: a summary of each that came to its end, and the defects found."""
    # in memory where possible: every input is a file
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
        tasks = [f"{name}:{count}" for name, count in counts.items()]
        done = subprocess.run(
            [sys.executable, "-m", "fuzz.driver", folder, str(seed), str(seconds), *tasks],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        summaries = [line for line in lines if "defect" not in line]
        defects = [line for line in lines if "defect" in line]
        if len(summaries) < len(counts):
            last = max(Path(folder).glob("x.*"), key=lambda file: file.stat().st_mtime_ns, default=None)
            content = last.read_bytes()[:4096].hex() if last else ""
            what = f"the process ended with {done.returncode}: {done.stderr[-1500:]}"
            defects.append({"target": list(counts)[len(summaries)], "defect": what, "input": None, "hex": content})
    return summaries, defects


def main(folder: Path, seed: int, seconds: float, counts: dict[str, int]) -> None:
    """What the process does."""
    import torch

    from .targets import find

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, _too_slow)
    found = {}
    for name in counts:
        place = folder / name
        place.mkdir()
        found[name] = find(name, place)
    held = int(Path("/proc/self/statm").read_text("utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, -1))
    for name, count in counts.items():
        fuzz(name, found[name], folder, seed, count, seconds)
    sys.stdout.flush()
    os._exit(0)  # whatever a broken file has left behind is not cleaned up, but gone


def fuzz(name: str, target: Any, folder: Path, seed: int, count: int, seconds: float) -> None:
    """All inputs of one target."""
    from lapae.errors import DataError, LapaeError

    file = folder / target.name
    at_first, slowest = peak(), 0.0
    n = {"refused": 0, "accepted": 0}
    for i in range(count):
        content = target.make(random.Random(f"{seed} {name} {i}"))
        file.write_bytes(content)
        defect = None
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, WAIT * seconds)
        try:
            target.read(file)
            n["accepted"] += 1
        except (LapaeError, DataError) as error:
            n["refused"] += 1
            defect = "no memory left" if isinstance(error, MemoryError) else None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            defect = "".join(traceback.format_exception(error))[-1500:]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        slowest = max(slowest, time.process_time() - began)
        if defect:
            print(json.dumps({"target": name, "defect": defect, "input": i, "hex": content[:4096].hex()}), flush=True)
    grown = round((peak() - at_first) / 1e6)
    print(json.dumps({"target": name, "n": count, **n, "slowest": round(slowest, 3), "megabytes": grown}), flush=True)


def _too_slow(*_: Any) -> None:
    raise TooSlow


def peak() -> int:
    """Most bytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    place, number, limit, *tasks = sys.argv[1:]
    main(Path(place), int(number), float(limit), {t.split(":")[0]: int(t.split(":")[1]) for t in tasks})
