"""Categories of many levels, and columns that others determine."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from narrow import sure

from lapae.data import Data
from lapae.impute.neighbours import MOST_FEATURES
from lapae.space import Column, Space
from lapae.space.levels import BUDGET, MOST_LEVELS, as_numbers, determined, embed, with_levels

ALL: dict[str, Any] = {"validation": 0, "calibration": 0}


def trips(n: int = 6000, n_zones: int = 100) -> pd.DataFrame:
    """Rows whose zone, of many, says which of four boroughs they are of and how long they are."""
    rng = np.random.default_rng(0)
    zone = rng.integers(0, n_zones, n)
    frame = pd.DataFrame(
        {
            "zone": [f"zone {i:03d}" for i in zone],
            "distance": zone / 10 + rng.normal(size=n),
            "borough": np.array(["Bronx", "Queens", "Kings", "Richmond"])[zone % 4],
            "tip": rng.normal(size=n),
        }
    )
    return frame


def test_a_category_of_many_levels_is_one_number():
    frame = trips()
    space = Data.of(frame, **ALL).space
    zone = sure(space.columns)[0]
    assert space.model_shape == (1 + 1 + 4 + 1,)
    assert space.parts == (("gaussian", 0, 2), ("categorical", 2, 6), ("gaussian", 6, 7))
    assert sure(space.feature_names)[0] == "zone"
    again = Space.from_dict(json.loads(json.dumps(space.to_dict())))
    assert again == space
    x = again.code(frame)
    z = again.to_model(x)
    assert np.abs(z[:, 0].mean()) < 0.02
    assert z[:, 0].std() == pytest.approx(1, abs=0.05)
    np.testing.assert_array_equal(again.to_user(z)[:, 0], x[:, 0])  # each level has a number of its own
    near = again.to_user(z + np.array([1e-4, *[0.0] * 6]))[:, 0]
    np.testing.assert_array_equal(near, x[:, 0])
    assert len(set(zone.values)) == 100
    x[0, 0] = np.nan
    assert np.isnan(again.to_model(x)[0, 0])
    assert np.isnan(again.to_user(again.to_model(x))[0, 0])


def test_rare_levels_are_carried():
    """The model is the one of the other columns; a missing level is the usual one."""
    frame = trips(2400)
    space = Data.of(frame, **ALL).space
    space = Space.from_dict(json.loads(json.dumps(space.to_dict())))
    without = Data.of(frame.drop(columns="zone"), **ALL).space
    x = space.code(frame)
    assert space.parts == without.parts
    assert space.feature_names == without.feature_names
    np.testing.assert_array_equal(space.to_model(x), without.to_model(x[:, 1:]))
    np.testing.assert_array_equal(space.as_given(np.ones((2, 6))), [[0, 1, 4, 1]] * 2)
    zone = sure(space.columns)[0]
    counts: Any = frame["zone"].value_counts()
    assert int(counts[zone.categories[sure(zone.carried)]]) == int(counts.max())
    assert (space.to_user(space.to_model(x))[:, 0] == zone.carried).all()
    assert space.to_user(np.ones((1, 6)), deviation=True)[0, 0] == 0
    x[:2, 0] = np.nan
    x[1, 2] = np.nan
    filled = space.uncode(space.put_back(space.to_model(x), x))
    usual: Any = frame.groupby("borough")["zone"].value_counts()[frame["borough"][0]]
    assert int(usual[filled["zone"][0]]) == int(usual.max())  # of its borough
    assert counts[filled["zone"][1]] == counts.max()
    borough = sure(space.columns)[2]
    assert borough.given_by == "zone"
    last = Data.of(frame[["tip", "zone"]], **ALL).space
    assert last.model_shape == (1,)
    np.testing.assert_array_equal(last.units((2,))[0][1:], [np.nan])
    alone = Data.of(frame[["zone"]], **ALL).space
    assert alone.model_shape == (1,)


def test_levels_that_are_alike_have_numbers_that_are_near():
    frame = trips().drop(columns="borough")
    zone = sure(Data.of(frame, **ALL).space.columns)[0]
    mean = frame.groupby("zone")["distance"].mean()
    correlation = np.corrcoef(np.argsort(np.argsort(zone.values)), np.argsort(np.argsort(np.asarray(mean))))[0, 1]
    assert abs(correlation) > 0.95


def test_levels_that_training_has_not_are_ordinary_and_never_filled_in():
    codes, others = np.repeat([0.0, 2.0, 4.0], 10), np.repeat([[-1.0], [0.0], [1.0]], 10, axis=0)
    values = embed(codes, 5, others)
    assert sorted(values[[0, 2, 4]]) in (values[[0, 2, 4]].tolist(), values[[4, 2, 0]].tolist())
    assert np.abs(values[[1, 3]] - values[2]).max() <= 1e-4
    assert len(set(values.tolist())) == 5
    column = Column("a", "category", tuple("vwxyz"), values=tuple(values.tolist()))
    space = Space.of(codes[:, None], columns=[Column("a", "category", tuple("vwxyz"))])
    assert space.model_shape == (5,)  # few levels have a feature each
    assert column.width == 1


def test_wide_categories_do_not_decide_for_others():
    narrow = [Column(f"n{i}", "category", tuple("abc")) for i in range(30)]
    wide = Column("w", "category", tuple(map(str, range(MOST_LEVELS + 1))))
    middle = [Column(f"m{i}", "category", tuple("abcdefgh")) for i in range(5)]
    assert as_numbers([*narrow, wide]) == [30]
    chosen = as_numbers([*narrow, *middle, wide])
    assert 35 in chosen
    assert set(chosen) - {35} <= set(range(30, 35))  # the widest first
    assert sum(1 if i in chosen else len(c.categories) for i, c in enumerate([*narrow, *middle, wide])) <= BUDGET
    booleans = [Column(f"b{i}", "category", tuple("ab")) for i in range(100)]
    assert len(as_numbers(booleans)) == 2 * 100 - BUDGET
    assert as_numbers([*booleans, *narrow]) == []  # there is no way to keep to the budget


def test_a_determined_column_is_looked_up():
    frame = trips()
    frame.loc[:9, "borough"] = "Queens"  # some are wrong: fewer than 1 %
    space = Data.of(frame, **ALL).space
    space = Space.from_dict(json.loads(json.dumps(space.to_dict())))
    borough = sure(space.columns)[2]
    assert borough.given_by == "zone"
    assert [column.given_by for column in sure(space.columns) if column.name != "borough"] == ["", "", ""]
    coded = space.code(frame)
    truth = coded[100:200, 2].copy()
    coded[100:200, 2] = np.nan
    coded[100, 0] = np.nan
    made = np.zeros((len(frame), *space.model_shape))
    filled = space.put_back(made, coded)
    np.testing.assert_array_equal(filled[101:200, 2], truth[1:])
    assert filled[100, 2] == 0  # nothing to look it up by: as it was made
    np.testing.assert_array_equal(filled[:100], coded[:100])  # what is observed stays, right or wrong
    both = space.put_back(np.stack([made, made]), coded)
    np.testing.assert_array_equal(both[1], filled)


def test_numbers_that_are_codes_determine_as_well():
    rng = np.random.default_rng(0)
    code = rng.integers(1000, 1040, 800)
    frame = pd.DataFrame({"code": code, "text": [f"thing {c}" for c in code], "x": rng.normal(size=800)})
    columns = {column.name: column for column in sure(Data.of(frame, **ALL).space.columns)}
    assert columns["text"].given_by == "code"
    assert dict(columns["text"].implied)[1000.0] == columns["text"].categories.index("thing 1000")


def test_numbers_are_determined_too():
    rng = np.random.default_rng(0)
    code = rng.integers(0, 30, 600)
    price = np.cos(np.arange(30.0))[code]
    columns = (Column("code", "category", tuple(f"c{i}" for i in range(30))), Column("price"), Column("sold"))
    x = np.stack([code, price, price + 0.1 * rng.normal(size=600)], 1)
    found = with_levels(columns, x)
    assert [column.given_by for column in found] == ["", "code", ""]
    assert dict(found[1].implied) == {float(i): np.cos(float(i)) for i in range(30)}
    assert Column.from_dict(found[1].to_dict()) == found[1]
    with pytest.raises(ValueError, match="implied values"):
        Column.from_dict(found[1].to_dict() | {"implied": [[0.0, float("nan")]]})


def test_what_is_not_determined():
    rng = np.random.default_rng(0)
    n = 2000
    columns = [Column("a", "category", tuple("pqrs")), Column("b", "category", tuple("xy")), Column("c", "boolean")]
    x = np.stack([rng.integers(0, 4, n), rng.integers(0, 2, n), rng.random(n) < 0.002], 1).astype(float)
    assert determined(columns, x) == {}  # neither by chance, nor as it is almost always the same
    x[:, 1] = np.where(rng.random(n) < 0.03, 1 - x[:, 0] % 2, x[:, 0] % 2)
    assert determined(columns, x) == {}  # 3 % are wrong
    x[:, 0] = np.arange(n)
    x[:, 1] = rng.integers(0, 2, n)
    ids = [Column("a", "count"), *columns[1:]]
    assert determined(ids, x) == {}  # a value for each row says nothing of others
    x[:, 0] = np.where(np.arange(n) < 60, rng.integers(0, 4, n), np.nan)
    x[:, 1:] = np.stack([np.arange(n) % 7 == 6, np.arange(n) % 90 == 89], 1)
    x[:60, 1] = 0
    assert determined(columns, x) == {}  # rows with a value of the first are all alike
    x[:, 0] = rng.integers(0, 4, n)
    assert with_levels(ids, x) == tuple(ids)


@pytest.mark.parametrize(
    "lie",
    [
        {"values": [0.0]},
        {"values": [0.0, float("nan")]},
        {"implied": [[0, 5]]},
        {"given_by": 3},
        {"lenient": "no"},
        {"carried": 2},
    ],
)
def test_a_column_that_lies_is_refused(lie):
    column = Column("a", "category", ("x", "y")).to_dict()
    assert Column.from_dict(column) == Column("a", "category", ("x", "y"))  # as of a model saved before
    with pytest.raises((ValueError, TypeError)):
        Column.from_dict(column | lie)


@pytest.mark.parametrize("levels", [2, 3, 24])
def test_levels_never_decide_whether_missing_values_come_from_similar_rows(levels):
    """Only the number of columns does."""
    rng = np.random.default_rng(0)
    words = {f"c{i}": rng.choice([f"level {k}" for k in range(levels)], 600) for i in range(100)}
    frame = pd.DataFrame(words | {f"x{i}": rng.normal(size=600) for i in range(MOST_FEATURES - 100)})
    space = Data.of(frame, **ALL).space
    assert len(sure(space.columns)) == MOST_FEATURES
    assert space.model_shape[0] <= MOST_FEATURES
