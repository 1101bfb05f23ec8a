"""Observers of training that tests bring."""

from __future__ import annotations

from lapae.train.progress import Observer


class StopAfter(Observer):
    """An observer that ends training after an epoch, as a signal would."""

    def __init__(self, epoch: int) -> None:
        self.last = epoch

    def epoch(self, record):
        if record["epoch"] == self.last:
            raise KeyboardInterrupt
