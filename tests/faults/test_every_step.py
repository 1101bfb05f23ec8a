"""A fault at every step of every command that writes: what is on the disk is the old or the new, and the next goes on.

`python benchmarks/faults.py` counts; `benchmarks/faults.md` keeps the counts.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .commands import COMMANDS, Harness
from .steps import FAULTS

SHORT = 3
"""Steps of each command and fault in the short version, evenly from all; the last is one more."""


@pytest.fixture(scope="module")
def harness(tmp_path_factory) -> Iterator[Harness]:
    harness = Harness(tmp_path_factory.mktemp("faults"))
    yield harness
    harness.server.close()


@pytest.mark.parametrize("name", COMMANDS)
def test_some_steps(name, harness):
    steps = harness.steps(name)
    assert {"create", "write", "fsync", "close"} <= set(steps)
    assert {"replace", "exchange"} & set(steps)
    for i, fault in enumerate(FAULTS):
        for at in {*range(1 + i, len(steps) + 1, -(-len(steps) // SHORT)), len(steps)}:
            harness.disturb(name, at, fault)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_step(name, harness):
    n_steps = len(harness.steps(name))
    for fault in FAULTS:
        for at in range(1, n_steps + 1):
            harness.disturb(name, at, fault)
