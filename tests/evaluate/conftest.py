"""A model of which everything is known, and one that was fitted."""

from __future__ import annotations

from typing import cast

import pytest
from known import Normal, all_to_test, mixed

from lapae import LaplacianAutoencoder
from lapae.data import Data
from lapae.model import Model
from lapae.space import Space


@pytest.fixture
def normal() -> Model:
    return cast(Model, Normal(Space("table", (3,))))


@pytest.fixture(scope="session")
def fitted() -> Model:
    return LaplacianAutoencoder(random_state=0, device="cpu", epochs=30).fit(mixed(600, 0)).model_


@pytest.fixture(scope="session")
def new(fitted) -> Data:
    """A thousand rows that the fitted model has not seen."""
    x = fitted.space.code(mixed(1000, 1))
    return all_to_test(x, space=fitted.space)
