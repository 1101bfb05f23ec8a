"""Numbers, times and dates as people write them in cells: read by one rule, and written back by it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import as_a, sure

from lapae.data import Data, load, open_input
from lapae.data.inspect import look
from lapae.errors import DataError
from lapae.space import Column, Space
from lapae.space.column_kinds import decide
from lapae.space.columns import UNSEEN
from lapae.space.frames import code_frame, uncode_frame
from lapae.space.written import Picture, find_picture

N = 60
K = np.arange(N)
DAYS = pd.date_range("2004-07-01", periods=N)


def units(form: str, values: Any = 1000 + 37 * K) -> list[str]:
    return [form.format(value) for value in values]


CELLS = {
    "money": (units("${:,}"), "count", "$#,##0", 1000 + 37 * K),
    "spaced money": (units("€ {:,}"), "count", "€ #,##0", 1000 + 37 * K),
    "thousands": (units("{:,.2f}", 999 + 0.25 * K), "number", "#,##0.00", 999 + 0.25 * K),
    "comma": (units("{:,}"), "count", "#,##0", 1000 + 37 * K),
    "millions": (
        [f"€{i / 10:.1f}M" if i % 2 else f"€{i}K" for i in K],
        "number",
        "€0.0[KMB]",
        K * np.where(K % 2, 1e5, 1e3),
    ),
    "percent": (units("{:.1f}%", K / 2), "number", "0.0%", K / 2),
    "unit": (units("{}cm", 150 + K), "count", "0cm", 150 + K),
    "spaced unit": (units("{} sq ft"), "count", "0 sq ft", 1000 + 37 * K),
    "european": (
        [f"{v:,.1f}".translate(str.maketrans(",.", ".,")) for v in 900.5 + 10 * K],
        "number",
        "#.##0,0",
        900.5 + 10 * K,
    ),
    "negative": (
        [f"-${i}.50" if i % 2 else f"(${i}.25)" for i in K],
        "number",
        "$0.00",
        -K - np.where(K % 2, 0.5, 0.25),
    ),
    "narrow spaces": ([f"{i + 1}\u202f{i:03d},5" for i in K], "number", "#\u202f##0,0", 1000.5 + 1001 * K),
    "long minus": (
        [f"{'' if i % 3 else chr(8722)}{i}.5" for i in K],
        "number",
        "0.0",
        (K + 0.5) * np.where(K % 3, 1, -1),
    ),
    "parentheses": ([f"({i})" if i % 2 else f"{i}" for i in K], "number", "0", K * np.where(K % 2, -1.0, 1.0)),
    "time": (units("13:{:02d}:18", K), "number", "hh:mm:ss", 13 * 3600 + 60 * K + 18),
    "afternoon": (units("1:{:02d} PM", K), "number", "hh:mm AM/PM", 13 * 3600 + 60 * K),
    "duration": (units("{}:30", K), "number", "[h]:mm", 3600 * K + 1800),
    "words": ([f"{day:%b} {day.day}, {day.year}" for day in DAYS], "date", "%b %d, %Y", 12600 + K),
    "digits": ([f"{day:%m%d%Y}" for day in DAYS], "date", "%m%d%Y", 12600 + K),
}


@pytest.mark.parametrize("name", CELLS)
def test_what_people_write(name):
    cells, kind, form, values = CELLS[name]
    column = as_a(Column, decide(pd.Series(cells), "x"))
    assert (column.kind, column.format) == (kind, form)
    frame = pd.DataFrame({"x": cells})
    x = code_frame(frame, [column])
    np.testing.assert_allclose(x[:, 0], values, rtol=1e-12)
    again = Column.from_dict(json.loads(json.dumps(column.to_dict())))
    assert again == column
    back = uncode_frame(x, [again])
    np.testing.assert_allclose(
        code_frame(back, [again])[:, 0], values, atol=0.05 * np.abs(values).max() * (name == "millions")
    )


def test_numbers_of_eight_digits():
    found = as_a(Column, decide(pd.Series([int(f"{day:%m%d%Y}") for day in DAYS]), "x"))
    assert (found.kind, found.dtype) == ("date", "int64")
    cells = pd.DataFrame({"x": [7012004, 12312004]})  # a leading zero is lost
    x = code_frame(cells, [found])
    np.testing.assert_array_equal(x[:, 0], [12600, 12783])
    assert uncode_frame(x, [found])["x"].tolist() == [7012004, 12312004]
    assert as_a(Column, decide(pd.Series(10_000_000 + 7 * K), "x")).kind == "count"


@pytest.mark.parametrize(
    "cells",
    [
        [f"{i % 4}WD" for i in K],  # few levels
        [f"A{i % 20}" for i in K],
        [f"{2139 * (i % 20 + 1):05d}" for i in K],  # a postcode
        [f"{i % 20}x" for i in K],
        [f"{i % 20}-{i % 2}" for i in K],
        [f"3.{i % 20}.2" for i in K],
        ["170cm", "65kg", "3 days"] * 20,
        [str(i) for i in range(15)] * 3 + ["a", "b", "c"] * 5,  # a quarter is text
    ],
)
def test_what_is_no_number(cells):
    assert as_a(Column, decide(pd.Series(cells), "x")).kind == "category"


@pytest.mark.parametrize("word", ["?", "NA", "n/a", "-", "--", "null", "None", "none", "", "NaN", " - "])
def test_words_for_what_is_missing(tmp_path, word):
    frame = pd.DataFrame({"a": [word, *map(str, range(3, N + 2))], "b": [word, *["x", "y"] * 30][:N]})
    frame["c"] = np.linspace(0, 1, N)  # a row with nothing observed would be left out
    numbers, words = (as_a(Column, decide(frame[name], name)) for name in "ab")
    assert (numbers.kind, words.categories) == ("count", ("x", "y"))
    np.testing.assert_array_equal(np.isnan(code_frame(frame, [numbers, words])), [[True] * 2, *[[False] * 2] * (N - 1)])
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = load(tmp_path / "t.csv", validation=0, calibration=0)
    assert np.isnan(data.train.x).sum(0).tolist() == [1, 1, 0]
    # a model that was trained when it was a level knows it as one
    older = Column("b", "category", (word.strip(), "x", "y"), "object")
    if word.strip():
        assert code_frame(frame, [older])[0, 0] == 0


def test_a_postcode_in_a_file_is_a_code_and_odd_ends_of_lines_are_told(tmp_path):
    zips = [f"{zip:05d}" for zip in (2139, 501, 94105, 10001)] * 15
    frame = pd.DataFrame({"zip": zips, "month": [f"{1 + i % 12:02d}" for i in K], "x": K / 7})
    frame.to_csv(tmp_path / "t.csv", index=False)
    columns = sure(load(tmp_path / "t.csv", validation=0, calibration=0).space.columns)
    assert [column.kind for column in columns] == ["category", "count", "number"]
    assert columns[0].categories == ("00501", "02139", "10001", "94105")
    (tmp_path / "mac.csv").write_bytes(frame.to_csv(index=False, lineterminator="\r").encode())
    with pytest.raises(DataError, match="lines end with"):
        load(tmp_path / "mac.csv")
    (tmp_path / "notes.csv").write_text("# by me\n" + frame.to_csv(index=False))
    with pytest.raises(DataError, match="comments are no rows"):
        load(tmp_path / "notes.csv")


def test_present_or_empty():
    frame = pd.DataFrame({"x": np.where(K % 3, 1.0, np.nan)})
    column = as_a(Column, decide(frame["x"], "x"))
    np.testing.assert_array_equal(code_frame(frame, [column])[:, 0], np.sign(K % 3))
    np.testing.assert_array_equal(code_frame(frame.astype("Int64").astype(str), [column])[:, 0], np.sign(K % 3))


def test_booleans_of_numbers():
    column = as_a(Column, decide(pd.Series(K % 2), "x"))
    with pytest.warns(UserWarning, match="not seen in training \\('x': '2'\\)"):
        found = code_frame(pd.DataFrame({"x": [0, 1, 2]}), [column])
    np.testing.assert_array_equal(found, [[0], [1], [UNSEEN]])
    np.testing.assert_array_equal(code_frame(pd.DataFrame({"x": ["0.0", "1", None]}), [column]), [[0], [1], [np.nan]])
    assert uncode_frame(np.array([[0.0], [1.0]]), [column])["x"].tolist() == [0, 1]


def test_new_cells_are_read_by_the_same_rule(tmp_path):
    frame = pd.DataFrame({name: cells for name, (cells, *_) in CELLS.items() if name != "european"})
    space = Data.of(frame.assign(sex=["f", "m"] * 30), validation=0, calibration=0).space
    space = Space.from_dict(json.loads(json.dumps(space.to_dict())))
    new = {
        "money": "$7",
        "spaced money": "€7",
        "thousands": "12",
        "comma": "1,000,000",
        "millions": "€2B",
        "percent": "3",
        "unit": "2 cm",
    }
    new |= {"spaced unit": "1,5", "negative": "-1", "time": "4:05", "afternoon": "11:59 p.m.", "duration": "99:00"}
    new |= {"words": "Jan 2, 1970", "digits": "01021970", "sex": "m"}
    new |= {"spaced unit": "15 Sq Ft", "narrow spaces": "2\u202f000,5", "long minus": "\u22123", "parentheses": "(4)"}
    expected = [7, 7, 12, 1e6, 2e9, 3, 2, 15, -1, 2000.5, -3, -4, 4 * 3600 + 300, 86340, 99 * 3600, 1, 1, 1]
    pd.DataFrame([new]).to_csv(tmp_path / "new.csv", index=False)
    for written in (False, True):
        reader = open_input(tmp_path / "new.csv", space, any_range=True, written=written)
        (block,) = reader.blocks(lambda n: None)
        assert dict(zip(sure(space.names), block.x[0], strict=True)) == dict(
            zip([*frame, "sex"], expected, strict=True)
        )


def test_cells_that_are_observed_stay_as_they_were_written():
    frame = pd.DataFrame({"pay": units("${:,}"), "sex": [" f", "m "] * 30, "n": [f" {i}.50" for i in K], "k": K % 9})
    space = Data.of(frame, validation=0, calibration=0).space
    gaps = frame.astype(object)
    gaps.iloc[0, :3] = None
    x = space.code(gaps)
    filled = np.where(np.isnan(x), [[1234.4, 1, 0.25, 0]], x)
    back = space.uncode(filled, gaps)
    assert back.iloc[0].tolist() == ["$1,234", "m", "0.25", 0]
    pd.testing.assert_frame_equal(back.iloc[1:].astype(object), frame.iloc[1:].astype(object))


def test_a_look_says_what_cells_were_read_as_and_what_kept_them_from_it(tmp_path):
    cells = [*units("${:,}")[: N - 2], "call us", "sold"]
    tickets = [str(100 + i % 29) if i % 4 else f"PC {i % 7}" for i in K]
    frame = pd.DataFrame({"price": cells, "ticket": tickets, "n": K / 7})
    frame.to_csv(tmp_path / "t.csv", index=False)
    price, ticket, n = look(tmp_path / "t.csv").columns
    assert (price["kind"], price["form"], price["example"]) == ("count", "$#,##0", "$1,000")
    assert price["almost"] == "96.7 % read as numbers like $#,##0, not 'call us', 'sold'"
    assert ticket["almost"].startswith("75 % read as numbers, not 'PC 0', 'PC 1'")
    assert n["almost"] == n["form"] == ""


@settings(deadline=None)
@given(
    st.lists(st.decimals(-(10**9), 10**9, places=2), min_size=2, max_size=20),
    st.sampled_from(["", "$", "€", "€ ", "Rs."]),
    st.sampled_from([",", ".", " ", "'", ""]),
    st.sampled_from(["", "%", " kg", "€"]),
)
def test_pictures_read_what_they_write(values, prefix, thousands, suffix):
    picture = Picture(prefix, thousands, "," if thousands == "." else ".", 2, False, suffix)
    assert Picture.read(str(picture)) == picture
    cells = [picture.write(float(value)) for value in values]
    np.testing.assert_array_equal(picture.parse(cells), np.array(values, float))
    found = sure(find_picture(cells))
    if any(abs(value) >= 1000 for value in values) and not (prefix and suffix == "€"):
        np.testing.assert_array_equal(found.parse(cells), np.array(values, float))


@settings(deadline=None)
@given(st.text(max_size=12), st.sampled_from(["$#,##0.00", "0[KMB]", "0cm", "hh:mm"]))
def test_any_text_is_a_number_or_none(word, form):
    assert code_frame(
        pd.DataFrame({"x": [word]}), [Column("x", format=form, dtype="object", lenient=True)], unknown={}
    ).shape == (1, 1)
