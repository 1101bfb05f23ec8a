"""Waiting for what must happen, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 300
"""Seconds after which what has not happened will not: far more than anything takes on a machine that is busy."""
T = TypeVar("T")


def until(happened: Callable[[], T], what: str, every: float = 0.005) -> T:
    """Ask again and again until the answer is true; an AssertionError where it never is."""
    end = time.monotonic() + PATIENCE
    while not (found := happened()):
        assert time.monotonic() < end, f"not within {PATIENCE} s: {what}"
        time.sleep(every)
    return found
