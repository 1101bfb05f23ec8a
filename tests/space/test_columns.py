"""Real columns: what they are taken for, their way into the model and back, and what is left out."""

from __future__ import annotations

import json
import warnings
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import as_a, sure

from lapae.data import Data, DataError
from lapae.space import Column, Space
from lapae.space.column_kinds import decide
from lapae.space.columns import UNSEEN
from lapae.space.frames import code_frame, uncode, uncode_frame

ALL: dict[str, Any] = {"validation": 0, "calibration": 0}
N = 120
rng = np.random.default_rng(0)
DAYS = pd.date_range("2023-11-01", periods=N)


def mixed() -> pd.DataFrame:
    generator = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "age": generator.integers(18, 90, N),
            "city": generator.choice(["Oslo", "Bonn", "Rome"], N),
            "active": generator.random(N) > 0.5,
            "member": generator.choice(["Yes", "No"], N),
            "since": DAYS[generator.permutation(N)],
            "weight": generator.normal(70, 10, N),
            "grade": pd.Categorical(generator.integers(1, 4, N)),
        },
        index=[f"row {i}" for i in range(N)],
    )
    for i, name in enumerate(frame.columns):
        if frame[name].dtype.kind not in "ib":
            frame.loc[frame.index[i], name] = None
    return frame


LEFT_OUT = {
    "note": [f"something about {i}" for i in range(N)],
    "user_id": rng.permutation(N),
    "unit": "kg",
    "nothing": np.nan,
    "pair": [(i % 3, 1) for i in range(N)],
}
KINDS = ["count", "category", "boolean", "boolean", "date", "number", "category"]


def test_a_mixed_frame_goes_in_as_it_is():
    frame = mixed()
    with pytest.warns(UserWarning, match="left out") as told:
        data = Data.of(frame.assign(**LEFT_OUT), **ALL)
    (warning,) = told
    for name in ("note", "user_id", "unit", "nothing"):
        assert f"'{name}' (" in str(warning.message)
    assert [column.kind for column in sure(data.space.columns) if column.name != "pair"] == KINDS
    assert data.space.missing


def test_spans_of_the_likelihoods():
    space = Data.of(mixed(), **ALL).space
    assert space.parts == (
        ("gaussian", 0, 1),
        ("categorical", 1, 4),
        ("bernoulli", 4, 6),
        ("gaussian", 6, 8),
        ("categorical", 8, 11),
    )
    assert sure(space.feature_names)[1:4] == ("city=Bonn", "city=Oslo", "city=Rome")
    assert space.model_shape == (11,)
    assert space.describe() == (
        "120 rows of 7 columns (1 count, 2 categories, 2 booleans, 1 date, 1 number), with missing values"
    )


def test_there_and_back():
    frame = mixed()
    data = Data.of(frame, **ALL)
    space = Space.from_dict(json.loads(json.dumps(data.space.to_dict())))
    assert space == data.space
    x = space.code(frame)
    np.testing.assert_array_equal(x, data.train.x)
    z = space.to_model(x)
    assert z.dtype == np.float32
    one_hot = z[:, 1:4]
    missing = frame["city"].isna().to_numpy()
    assert np.isnan(one_hot[missing]).all()
    assert (one_hot[~missing].sum(1) == 1).all()
    back = space.uncode(space.to_user(z), like=frame)
    pd.testing.assert_frame_equal(back, frame, check_exact=False, rtol=1e-5)
    np.testing.assert_allclose(space.to_user(np.stack([z, z])), np.stack([x, x]), rtol=1e-5)


def test_what_a_model_says_becomes_what_a_column_can_hold():
    space = Data.of(mixed(), **ALL).space
    z = np.zeros((1, 11))
    z[0, 1:4], z[0, 4:6], z[0, 8:11] = [0.2, 0.3, 0.5], [0.4, 0.9], [0.1, 0.8, 0.1]
    frame = space.uncode(space.to_user(z))
    assert frame["age"].dtype == np.int64
    assert frame.loc[0, ["city", "active", "member", "grade"]].tolist() == ["Rome", False, "Yes", 2]
    assert frame["since"][0].time().isoformat() == "00:00:00"
    z[0, 0] = -1e3
    assert space.uncode(space.to_user(z))["age"][0] == 0  # no count is below
    assert space.to_user(z, whole=False)[0, 0] == 0  # nor the end of an interval
    found = space.probabilities(z)
    np.testing.assert_allclose(found["city"], [[0.2, 0.3, 0.5]])
    np.testing.assert_allclose(found["member"], [[0.1, 0.9]])
    deviation = space.to_user(np.full((1, 11), 0.5), deviation=True)[0]
    assert deviation[0] == pytest.approx(0.5 * as_a(np.ndarray, space.scale)[0])
    assert deviation[1] == pytest.approx(np.sqrt(0.75))


def test_new_frames():
    frame = mixed()
    space = Data.of(frame, **ALL).space
    x = space.code(frame)
    shuffled = frame[frame.columns[::-1]].assign(more="ignored")
    np.testing.assert_array_equal(space.code(shuffled), x)
    np.testing.assert_array_equal(space.code(frame.astype(object).to_numpy()), x)
    np.testing.assert_array_equal(space.code(x), x)  # codes are codes
    np.testing.assert_array_equal(space.as_given(np.ones((2, 11))), [[1, 3, 1, 1, 1, 1, 3]] * 2)
    with pytest.raises(DataError, match="has no column 'age', 'city'; it has active"):
        space.code(frame.drop(columns=["age", "city"]))
    with pytest.raises(DataError, match=r"X, row 2 \(from 0\), column 'weight': 'heavy' is not a number"):
        space.code(frame.astype(object).assign(weight=["1", None, "heavy", *["3"] * (N - 3)]))
    with pytest.raises(DataError, match="column 'weight': 'inf' is not finite"):
        space.code(frame.assign(weight=np.inf))
    with pytest.raises(DataError, match="column 'since': 'soon' is not a date"):
        space.code(frame.assign(since="soon"))


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%d.%m.%Y"])
def test_dates_with_and_without_a_time_of_day_are_the_same(form):
    days = pd.date_range("2020-05-05", periods=N)
    frame = pd.DataFrame({"x": np.arange(N) % 3 * 0.5, "day": days.strftime(form)})
    space = Data.of(frame, **ALL).space
    assert [column.kind for column in space.numbered] == ["number", "date"]
    for other in ("%Y-%m-%d", "%Y-%m-%d 00:00:00", "%Y-%m-%dT%H:%M:%SZ"):
        np.testing.assert_array_equal(space.code(frame.assign(day=days.strftime(other))), space.code(frame))
    with pytest.raises(DataError, match="column 'day': '5 May' is not a date as 2024-01-31"):
        space.code(frame.assign(day="5 May"))


def test_new_levels_have_a_code_of_their_own_and_one_warning():
    frame = mixed()
    space = Data.of(frame, **ALL).space
    with pytest.warns(UserWarning, match="not seen") as told:
        x = space.code(frame.assign(city="Lima", member="perhaps"))
    (warning,) = told
    assert "X: values that were not seen in training ('city': 'Lima'; 'member': 'perhaps')" in str(warning.message)
    assert (x[:, [1, 3]] == UNSEEN).all()
    assert np.isnan(space.known(x)[:, [1, 3]]).all()


def test_columns_are_chosen():
    frame = mixed()
    assert [c.name for c in sure(Data.of(frame, columns=["weight", "city"], **ALL).space.columns)] == ["weight", "city"]
    dropped = Data.of(frame, drop=["city", -1], **ALL).space
    assert [c.name for c in sure(dropped.columns)] == ["age", "active", "member", "since", "weight"]
    data = Data.of(frame.dropna(), label_column="city", **ALL)
    assert data.label_names == ("Bonn", "Oslo", "Rome")
    assert "city" not in [c.name for c in sure(data.space.columns)]
    with pytest.raises(DataError, match=r"X: no column 'wieght' \(did you mean 'weight'\?\)"):
        Data.of(frame, columns=["wieght"])


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.arange(N) % 30, "count"),
        (np.arange(N) % 30 - 3, "number"),
        (np.arange(N) % 5, "count"),
        (np.arange(N) % 2, "boolean"),
        (np.arange(N) % 2 + 0.0, "boolean"),
        (["0", "1", ""] * 40, "boolean"),
        (np.where(np.arange(N) % 3, 1.0, np.nan), "boolean"),
        (np.where(np.arange(N) % 3, 2.0, np.nan), "constant"),
        (np.where(np.arange(N) % 7, np.arange(N) % 30, np.nan), "count"),
        (np.arange(N) % 30 + 0.0, "count"),
        (np.arange(N) % 30 + 0.5, "number"),
        ([str(i % 30) for i in range(N)], "count"),
        (["1.5", "2", None, ""] * 30, "number"),
        (["a", "b", None, "a"] * 30, "category"),
        (["yes", "no", None, "no"] * 30, "boolean"),
        (["TRUE", "false", "", "NA"] * 30, "boolean"),
        ([True, False, None, True] * 30, "boolean"),
        (pd.array([True, None] * 60, dtype="boolean"), "constant"),
        (pd.array([True, False, None] * 40, dtype="boolean"), "boolean"),
        (pd.array([1, 700, None] * 40, dtype="Int64"), "number"),
        (DAYS.strftime("%d.%m.%Y"), "date"),
        (DAYS.strftime("%m/%d/%Y"), "date"),
        (DAYS.strftime("%Y-%m-%dT%H:%M:%S.5Z"), "date"),
        (DAYS.tz_localize("Europe/Berlin"), "date"),
        (DAYS - DAYS[0], "number"),
        (["2024-13-45"] * 60 + ["2024-01-01"] * 60, "category"),
        ([f"{i % 60}x" for i in range(N)], "free text: 60 different values"),
        ([f"{i % 40}x" for i in range(N)], "category"),
        ([f"{i % 100}x" for i in range(2000)], "category"),
        ([f"{i % 101}x" for i in range(2000)], "free text: 101 different values"),
        ([f"{i}x" for i in range(N)], "an identifier: no two are alike"),
        (pd.Categorical([f"{i % 3}x" for i in range(4)]), "category"),
        ([7] * N, "constant"),
        ([None] * N, "without a single value"),
        (np.full(N, np.nan), "without a single value"),
        (np.arange(N) + 1j, "values of type complex128"),
    ],
)
def test_what_a_column_is(values, kind):
    found = decide(pd.Series(values), "x")
    assert (found if isinstance(found, str) else found.kind) == kind


@pytest.mark.parametrize("name", ["id", "user_id", "User ID", "userId", "patient-id"])
def test_identifiers_by_name(name):
    assert decide(pd.Series(np.arange(N)), name) == "an identifier: no two are alike"
    assert decide(pd.Series(np.arange(N) + 1.0), name) == "an identifier: no two are alike"
    assert as_a(Column, decide(pd.Series(1000 * np.arange(N)), "valid")).kind == "count"


def test_whole_numbers_that_chance_would_repeat_are_keys():
    rng = np.random.default_rng(0)
    invoices = pd.Series(5000 + np.cumsum(rng.integers(1, 6, 300)))
    assert decide(invoices, "invoice") == "an identifier: it numbers the rows"
    assert decide(invoices.sample(frac=1, random_state=0) + 0.0, "invoice") == "an identifier: it numbers the rows"
    for learned in (invoices[:90], invoices.replace(invoices[0], invoices[1]), 10**6 * invoices, invoices + 0.5):
        assert isinstance(decide(learned, "invoice"), Column)
    assert isinstance(decide(invoices, "invoice", alone=True), Column)


@pytest.mark.parametrize("word", ["#N/A", "#DIV/0!", "."])
def test_words_of_spreadsheets_for_missing_values(word):
    found = decide(pd.Series([word, "3.5", "4", "7"] * 20), "x")
    assert (getattr(found, "kind", None), getattr(found, "lenient", None)) == ("number", False)


columns = st.fixed_dictionaries(
    {
        "number": st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=6, max_size=6),
        "count": st.lists(st.integers(0, 10**6), min_size=6, max_size=6),
        "flag": st.lists(st.booleans(), min_size=6, max_size=6),
        "word": st.lists(st.one_of(st.none(), st.sampled_from(["a", "ö b", "7", "C,;"])), min_size=6, max_size=6),
        "day": st.lists(st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1)), min_size=6, max_size=6),
    }
)


@settings(deadline=None)
@given(columns)
def test_codes_round_trip(values):
    frame = pd.DataFrame(values)
    frame["day"] = frame["day"].dt.floor("s")
    frame["number"] = frame["number"].astype(float)
    frame["word"] = frame["word"].astype(object)
    kinds = {name: decide(frame[name], name) for name in frame}
    known = [column for column in kinds.values() if not isinstance(column, str)]
    if not known:
        return
    x = code_frame(frame, known)
    space = Space.of(x, columns=known)
    again = space.to_user(space.to_model(x).astype(np.float64))
    for i in range(len(known)):
        near = {"rtol": 1e-6, "atol": 1e-6 * (1 + np.nanmax(np.abs(x[:, i]), initial=0.0))}
        np.testing.assert_allclose(again[:, i], x[:, i], **near)
    back = uncode_frame(x, known)
    for column in known:
        expected = as_a(pd.Series, frame[column.name])
        if column.kind == "date":
            assert (back[column.name] - expected).abs().max() <= pd.Timedelta("1s")
        else:
            pd.testing.assert_series_equal(back[column.name], expected, check_dtype=column.dtype == str(expected.dtype))


@pytest.mark.parametrize("cells", [1, 2 * N, 2**18])
def test_columns_of_numbers_go_in_together_as_they_would_one_by_one(monkeypatch, cells):
    monkeypatch.setattr("lapae.space.frames.GROUP_CELLS", cells)
    numbers = np.random.default_rng(0).normal(size=(N, 5)).round(1)
    frame = pd.DataFrame(numbers, columns=[*"abcde"]).assign(word=["x", "y"] * (N // 2))
    frame["b"] = [*range(N)]
    frame["c"] = frame["c"].astype("Float64")
    frame["d"] = frame["d"].astype(np.float32)
    frame["e"] = frame["e"].astype(object)
    frame.loc[3, ["a", "c", "d", "e"]] = None
    known = [Column(name, "number") for name in "edcba"]
    known.insert(2, Column("word", "category", ("x", "y")))
    x = code_frame(frame, known)
    for i, column in enumerate(known):
        if column.name == "word":
            expected = np.tile([0.0, 1.0], N // 2)
        else:
            expected = frame[column.name].to_numpy(np.float64, na_value=np.nan)
        np.testing.assert_array_equal(x[:, i], expected)
    frame.loc[7, "d"] = np.inf
    with pytest.raises(DataError, match=r"row 7 \(from 0\), column 'd': 'inf' is not finite"):
        code_frame(frame, known)


def test_polars_frames():
    pl = pytest.importorskip("polars", reason="polars frames need polars")
    frame = mixed().drop(columns="grade")
    space = Data.of(frame, **ALL).space
    objects = frame.astype(object).where(frame.notna(), None)
    polars = pl.DataFrame({name: objects[name].tolist() for name in objects})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = space.code(polars)
        assert Data.of(polars, **ALL).space.parts == space.parts
    np.testing.assert_array_equal(x, space.code(frame))
    back = space.uncode(x, like=polars)
    assert isinstance(back, pl.DataFrame)
    assert back.columns == polars.columns
    assert back["city"].to_list() == polars["city"].to_list()
    assert back["age"].dtype == pl.Int64


def test_a_frame_for_a_model_of_an_array():
    x = rng.normal(size=(50, 3))
    space = Data.of(x, **ALL).space
    np.testing.assert_array_equal(space.code(pd.DataFrame(x, columns=list("abc"))), x)
    np.testing.assert_array_equal(space.uncode(x), x)
    with pytest.raises(DataError):
        space.code(pd.DataFrame(x[:, :2]))


@pytest.mark.parametrize(
    ("words", "form"),
    [
        (DAYS.strftime("%Y-%m-%dT10:00:00+05:30"), "%Y-%m-%dT%H:%M:%S+05:30"),
        (DAYS.strftime("%Y-%m-%d 10:00:00.5-0300"), "%Y-%m-%d %H:%M:%S-0300"),
        (DAYS.strftime("%Y-%m-%d 10:00+01"), "%Y-%m-%d %H:%M:%S+01"),
        (DAYS.strftime("%Y-%m-%dT10:00:00Z"), "%Y-%m-%dT%H:%M:%SZ"),
        ([f"{day:%Y-%m-%dT10:00:00}+0{i % 2 + 1}:00" for i, day in enumerate(DAYS)], "%Y-%m-%dT%H:%M:%S+00:00"),
        (DAYS.strftime("%Y-%m-%dT10:00:00.5"), ""),
        (DAYS.strftime("%Y-%m-%d"), "%Y-%m-%d"),
    ],
)
def test_times_in_text_keep_their_offset_from_universal_time(words, form):
    series = pd.Series(words, dtype=object)
    column = as_a(Column, decide(series, "x"))
    assert (column.kind, column.format) == ("date", form)
    frame = series.to_frame("x")
    codes = code_frame(frame, [column])
    expected = pd.to_datetime(series, utc=True, format="ISO8601").dt.tz_localize(None).astype("datetime64[us]")
    np.testing.assert_allclose(codes[:, 0], expected.to_numpy().astype(np.int64) / 86_400e6, rtol=0, atol=1e-9)
    made = uncode(codes[:, 0], column)
    np.testing.assert_allclose(code_frame(made.to_frame("x"), [column]), codes, rtol=0, atol=6e-6)
    if form:  # of the same length and offset as what was given, but for fractions of a second
        offset = form.partition("%S")[2]
        assert all(word.endswith(offset) for word in made)
        assert made[0][:16] == (words[0][:16] if offset != "+00:00" else f"{DAYS[0]:%Y-%m-%dT}09:00")
