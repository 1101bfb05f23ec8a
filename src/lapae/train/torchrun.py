"""Communication with torchrun: what it tells a process about its job by environment variables, and the reverse.

No torch is imported here: the command line asks for its rank before it imports anything heavy.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

GRACE_SECONDS = 3
"""How long a process waits for torchrun to end it, after another process of the job has failed."""


def in_job() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def job_size() -> int:
    """Return the number of processes of the job, on all machines; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if in_job() else 1


def local_size() -> int:
    """Return the number of processes of the job on this machine; 1 without torchrun."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if in_job() else 1


def job_rank() -> int:
    """Return the rank of this process in its job, which is known before a process group exists."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Return the rank of this process among those on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def may_restart() -> bool:
    """Return whether torchrun restarts the job when a process dies (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def restarted() -> bool:
    """Return whether torchrun has restarted the job after a process died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def report_failure(message: str) -> None:
    """Write why this process failed where torchrun reads it for its summary of the job."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps({"message": message, "timestamp": int(time.time())}))


def await_end() -> None:
    """Wait until torchrun ends this process because another one failed, so that it reports the other one as the
    cause."""
    if job_size() > 1:
        time.sleep(GRACE_SECONDS)
