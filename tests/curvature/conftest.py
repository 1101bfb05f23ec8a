"""Weights are drawn from torch's own generator: the same in every run."""

import pytest
import torch


@pytest.fixture(autouse=True)
def same_weights():
    torch.manual_seed(0)
