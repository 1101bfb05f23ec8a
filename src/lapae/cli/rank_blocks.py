"""A command's blocks, shared between processes.

Each rank predicts every n-th block; rank 0 collects them in input order. Nothing is put on a disk on the way, and
nobody holds more than one block of each process: a process waits until rank 0 takes what it has found.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lapae.curvature.chunking import OutOfMemory
from lapae.errors import LapaeError
from lapae.train.distributed import rank, receive, send, world_size


@dataclass(frozen=True)
class Rows:
    """What was found for a block of data."""

    index: int
    """Place of the block in the input."""
    names: list[str]
    """Of the cells."""
    cells: list[list[str]]
    """What the rows of the output begin with (an index, a label; a file)."""
    found: dict[str, np.ndarray]
    """Name of a quantity to its values (B, …)."""


def in_order(mine: Iterator[Rows], skipped: list[str]) -> Iterator[Rows]:
    """On the first process, the rows of all of them by index; on the others nothing: theirs are sent to it.

    `skipped` holds what this process has left out at the end; on the first one, what all have.
    """
    if world_size() == 1:
        yield from mine
    elif rank() > 0:
        _give(mine, skipped)
    else:
        others = [_take(source, skipped.extend) for source in range(1, world_size())]
        yield from heapq.merge(mine, *others, key=lambda rows: rows.index)
        skipped.sort()


def _give(mine: Iterator[Rows], skipped: list[str]) -> None:
    """Send rows to the first process, then what was left out, or why there are no more: it has the word."""
    last: dict[str, Any] = {}
    try:
        for rows in mine:
            arrays = {name: [value.dtype.str, value.shape] for name, value in rows.found.items()}
            send(_packed({"index": rows.index, "names": rows.names, "cells": rows.cells, "arrays": arrays}))
            for value in rows.found.values():
                send(value.tobytes())
    except (LapaeError, OutOfMemory) as error:
        last = {"error": str(error)}
    send(_packed({"skipped": skipped, **last}))


def _take(source: int, leave_out: Callable[[list[str]], None]) -> Iterator[Rows]:
    """The rows of another process."""
    while "arrays" in (message := json.loads(receive(source))):
        arrays = message.pop("arrays").items()
        found = {name: np.frombuffer(receive(source), dtype).reshape(shape) for name, (dtype, shape) in arrays}
        yield Rows(found=found, **message)
    if "error" in message:
        raise LapaeError(message["error"])
    leave_out(message["skipped"])


def _packed(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()
