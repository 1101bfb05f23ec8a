"""What tests draw is the same whichever tests ran before them: with several workers their order is chance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def first() -> float:
    np.random.rand(7)
    return float(torch.rand(()))


@pytest.fixture(scope="module")
def second() -> float:
    return float(torch.rand(()))


@pytest.mark.parametrize("made", ["by this test", "before it"])
def test_fixtures_that_are_shared_take_no_draws_from_a_test(first, second, made):
    own = float(torch.rand(())), float(np.random.rand())
    torch.manual_seed(0)
    anew = float(torch.rand(())), float(np.random.RandomState(0).rand())
    assert own == anew
    assert first == second == anew[0]


def examples() -> list[str]:
    found: list[str] = []

    @settings(derandomize=True, max_examples=100, database=None)
    @given(st.lists(st.one_of(st.floats(), st.integers(), st.text(max_size=8))))
    def look(x: list) -> None:
        found.append(repr(x))

    look()
    return found


def test_examples_do_not_depend_on_what_is_imported(tmp_path, monkeypatch):
    before = examples()
    (tmp_path / "numbers_of_its_own.py").write_text("x = [1234.5, 98765, 'a word', 0.125, 4711]\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("numbers_of_its_own")
    assert examples() == before
