"""The epochs of a training as lines of metrics.jsonl."""

from __future__ import annotations

import json
import warnings
from typing import Any

from lapae.errors import RunError
from lapae.runs import HISTORY, Run
from lapae.runs.files import write_whole


def append_history(run: Run, record: dict[str, Any]) -> None:
    """Add an epoch to metrics.jsonl."""
    try:
        with open(run / HISTORY, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {run / HISTORY}: {error.strerror}") from error


def write_history(run: Run, history: list[dict[str, Any]]) -> None:
    """Make metrics.jsonl say what the checkpoint knows: epochs after it are done again, damage is mended."""
    known = "".join(json.dumps(record) + "\n" for record in history).encode()
    if (run / HISTORY).exists() and not (run / HISTORY).read_bytes().startswith(known):
        warnings.warn(f"{run / HISTORY} is damaged: written anew from the checkpoint", stacklevel=2)
    write_whole(run / HISTORY, known)
