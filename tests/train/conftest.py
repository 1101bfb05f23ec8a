from __future__ import annotations

import pytest
from trained import CURVE

from lapae.fit import fit
from lapae.runs import Run


@pytest.fixture
def whole(table, tmp_path) -> Run:
    """A run that nothing disturbed."""
    run = Run.create(tmp_path / "whole")
    fit(CURVE, table, run=run)
    return run
