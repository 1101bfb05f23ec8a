from __future__ import annotations

import pytest
from trained import CURVE

from lapae.fit import fit
from lapae.runs import HISTORY, Run
from lapae.train.checkpoint import Checkpoints


@pytest.fixture
def every(monkeypatch):
    """Have checkpoints written every n epochs: `every(n)`."""

    def write_every(n: int) -> None:
        monkeypatch.setattr(
            Checkpoints, "due", lambda self: len((self.run / HISTORY).read_bytes().splitlines()) % n == 0
        )

    return write_every


@pytest.fixture
def whole(table, tmp_path) -> Run:
    """A run that nothing disturbed."""
    run = Run.create(tmp_path / "whole")
    fit(CURVE, table, run=run)
    return run
