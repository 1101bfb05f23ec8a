"""Columns whose values, by themselves, are distributed otherwise than in training."""

from __future__ import annotations

import numpy as np

from lapae.calibrate.changed_columns import changed_columns
from lapae.space.columns import UNSEEN, Column

COLUMNS = (
    Column("price"),
    Column("visits", "count"),
    Column("paid", "boolean"),
    Column("city", "category", ("A", "B")),
)


def rows(n: int, rng: np.random.Generator) -> np.ndarray:
    x = np.column_stack(
        [rng.lognormal(size=n).round(1), rng.poisson(2, n), rng.random(n) < 0.9, rng.random(n) < 0.5]
    ).astype(float)
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


def test_columns_of_the_same_kind_are_rarely_said_to_have_changed():
    rng = np.random.default_rng(0)
    wrong = sum(bool(changed_columns(COLUMNS, rows(150, rng), rows(60, rng), 0.1)) for _ in range(200))
    assert wrong <= 0.15 * 200


def test_what_has_changed_is_said():
    rng = np.random.default_rng(0)
    known, new = rows(400, rng), rows(300, rng)
    assert not changed_columns(COLUMNS, known, new, 1e-4)
    changes = {
        "price": (new[:, 0] / 100, "the middle 80 % are 0.00"),
        "visits": (np.full(300, np.nan), "100 % missing, 10"),
        "paid": (1 - new[:, 2], "in training"),
        "city": (np.full(300, UNSEEN), "unseen in 100 %, 0 % in training"),
    }
    for j, (name, (values, told)) in enumerate(changes.items()):
        changed = new.copy()
        changed[:, j] = values
        found = changed_columns(COLUMNS, known, changed, 1e-4)
        assert list(found) == [name]
        assert told in found[name][1]
        assert found[name][0] <= 1e-4
