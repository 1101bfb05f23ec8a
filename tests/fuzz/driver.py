"""Runs a target on many inputs in a process of its own, under limits of memory and time; JSON lines on stdout.

    python -m fuzz.driver TARGET FIRST COUNT SEED FOLDER    (in tests/)

Input number i of a target depends on the seed and i alone. What is wrong with one: an error that is not ours, more
than `SECONDS`, no memory left under the limit. A crash ends the process; its input is the file in FOLDER.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

SECONDS = 10
MEMORY = 2**30
"""Bytes above what the process holds with everything imported."""


class TooSlow(BaseException):
    """Not an Exception: no loader may take it for damage of the file."""


def main(target: str, first: int, count: int, seed: int, folder: Path) -> None:
    import torch

    from lapae.data.errors import DataError
    from lapae.errors import LapaeError

    from .targets import find

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    chosen = find(target, folder)
    file = folder / chosen.name

    def alarm(*_):
        raise TooSlow

    signal.signal(signal.SIGALRM, alarm)
    chosen_read = chosen.read
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, -1))
    at_first = peak()
    refused = accepted = 0
    slowest = 0.0
    for i in range(first, first + count):
        content = chosen.make(random.Random(f"{seed} {target} {i}"))
        file.write_bytes(content)
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            chosen_read(file)
            accepted += 1
        except (LapaeError, DataError) as error:
            refused += 1
            if isinstance(error, MemoryError):
                report(i, content, "no memory left")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            report(i, content, "".join(traceback.format_exception(error))[-1500:])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        slowest = max(slowest, time.monotonic() - began)
    total = {"n": count, "refused": refused, "accepted": accepted, "slowest": round(slowest, 3)}
    print(json.dumps({"target": target, **total, "megabytes": round((peak() - at_first) / 1e6)}), flush=True)
    os._exit(0)


def report(i: int, content: bytes, what: str) -> None:
    print(json.dumps({"defect": what, "input": i, "hex": content[:4096].hex()}), flush=True)


def peak() -> int:
    """Most bytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    name, start, n, chosen_seed, place = sys.argv[1:]
    main(name, int(start), int(n), int(chosen_seed), Path(place))
