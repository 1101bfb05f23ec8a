"""Records of epochs in metrics.jsonl, one line each."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

from lapae.errors import RunError
from lapae.runs import HISTORY, Run
from lapae.runs.files import write_whole
from lapae.runs.texts import read_text


def append_history(run: Run, record: dict[str, Any]) -> None:
    """Add an epoch to metrics.jsonl."""
    try:
        with open(run / HISTORY, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {run / HISTORY}: {error.strerror}") from error


def write_history(run: Run, history: list[dict[str, Any]]) -> None:
    """Write the epochs of the checkpoint to metrics.jsonl: later ones are trained again, and damage is repaired."""
    known = "".join(json.dumps(record) + "\n" for record in history).encode()
    if os.path.lexists(run / HISTORY) and not _begins_with(run / HISTORY, known):
        warnings.warn(f"{run / HISTORY} is damaged: rewritten from the checkpoint", stacklevel=2)
    write_whole(run / HISTORY, known)


def _begins_with(path: Path, known: bytes) -> bool:
    try:
        return read_text(path).startswith(known)
    except OSError:
        return False
