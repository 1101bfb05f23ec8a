"""What the environment says about the processes of a job. No torch in here: the command line asks before it imports.

torchrun starts a job's processes and tells each its place; so does `lapae train --devices N`, through Lightning Fabric,
which starts the command again for each further process.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

GRACE_SECONDS = 3


def launched() -> int:
    """Processes that torchrun started; 1 where it was not torchrun."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def launched_on_node() -> int:
    """Those of them on this machine."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def one_of_several() -> bool:
    """Whether this process shares its work with others, whoever started them."""
    return "LOCAL_RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def place(of: str = "RANK") -> int:
    """Rank of this process before it has met the others; of="LOCAL_RANK": among those of its machine."""
    found = os.environ.get(of, os.environ.get("SLURM_LOCALID" if of == "LOCAL_RANK" else "LOCAL_RANK", "0"))
    return int(found)


def may_restart() -> bool:
    """Whether torchrun starts the job again when a process dies (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def restarted() -> bool:
    """Whether torchrun has started the job again, after a process died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def tell_launcher(message: str) -> None:
    """Have torchrun's account of a failed job say why this process failed."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps({"message": message, "timestamp": int(time.time())}))


def await_end() -> None:
    """Wait for torchrun to end this process, since another one has failed: so that it names that one as the cause."""
    if launched() > 1:
        time.sleep(GRACE_SECONDS)
