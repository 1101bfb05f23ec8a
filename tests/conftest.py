"""Shared by all tests: one thread, so that numbers do not depend on the machine; data that train in moments."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # child processes too

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from trained import in_splits

from lapae.data import Data, Split
from lapae.space import Space

torch.set_num_threads(1)

# A busy machine is no failure, so no example has a deadline; what fails in CI (CI=true) must fail again elsewhere.
settings.register_profile("lapae", deadline=None, derandomize=os.environ.get("CI", "").lower() in ("true", "1"))
settings.load_profile("lapae")
# Otherwise it also tries numbers and words of the modules that happen to be imported, which is chance with workers.
providers._get_local_constants = lambda: providers._local_constants


def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a test file makes when it is read is the same whichever files are read before."""
    if isinstance(collector, pytest.Module):
        torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Weights that a test draws are the same whichever tests ran before: with several workers their order is chance."""
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef) -> Generator[None, Any, Any]:
    """What tests share is the same whichever of them makes it, and that one's own draws are as in the others."""
    if fixturedef.scope == "function":
        return (yield)
    state = torch.get_rng_state(), np.random.get_state()
    pytest_runtest_setup()
    try:
        return (yield)
    finally:
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])


@pytest.fixture
def table() -> Data:
    """150 data of 6 elements on a curve: 96 to train, 24 to validate, 30 to test."""
    generator = np.random.default_rng(0)
    t = generator.uniform(-1, 1, (150, 1))
    x = np.concatenate([np.sin(2 * t), np.cos(2 * t), t, t**2, t**3, np.ones_like(t)], 1)
    x = (x + 0.05 * generator.standard_normal(x.shape)).astype(np.float32)
    parts = (Split(x[:96], None), Split(x[96:120], None), Split(x[120:], None))
    return in_splits(Space("table", (6,), name="curve"), *parts)
