"""Rows as a client sends them, to the numbers of an exported graph."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest

from lapae.space import Column
from lapae.space.frames import code_frame
from lapae_runtime import Detector, InputError
from lapae_runtime.rows import UNSEEN, Field, read_rows

FIELDS = (
    Field("n"),
    Field("calls", "count"),
    Field("shade", "category", ("dark", "light", "none", "7"), unseen=UNSEEN),
    Field("up", "boolean"),
    Field("sold", "boolean", ("N", "Y")),
    Field("seen", "boolean", format="1 or empty"),
    Field("day", "date", format="%Y-%m-%d"),
    Field("when", "date", format="%d/%m/%Y %H:%M"),
)
CELLS = {
    "n": [1.5, "2.25", None, -1000000000.0, 0],
    "calls": [3, "4", "NA", 0, 5.0],
    "shade": ["light", " dark ", "pink", "none", 7.0],
    "up": [True, "false", 1, "no", 0],
    "sold": ["Y", "n", None, "N", "Y"],
    "seen": [1, "", None, "1", True],
    "day": ["1970-01-03", "1969-12-31", None, "2024-02-29", "2000-01-01"],
    "when": ["01/01/1970 12:00", "02/01/1970 00:00", "-", "29/02/2024 06:00", "2000-01-01T18:00:00"],
}
ROWS = [dict(zip(CELLS, row, strict=True)) for row in zip(*CELLS.values(), strict=True)]


def test_cells_are_read_as_the_library_reads_them():
    columns = [Column(f.name, f.kind, f.words, "object", f.format) for f in FIELDS]  # pyright: ignore
    with pytest.warns(UserWarning, match="'pink'"):
        expected = code_frame(pd.DataFrame(ROWS), columns)
    np.testing.assert_array_equal(read_rows(ROWS, FIELDS), expected)
    np.testing.assert_array_equal(read_rows(pd.DataFrame(ROWS), FIELDS), expected)
    np.testing.assert_array_equal(read_rows(CELLS, FIELDS), expected)
    assert expected[0].tolist() == [1.5, 3, 1, 1, 1, 1, 2, 0.5]
    assert expected[2, 2] == UNSEEN
    assert FIELDS[2].write(UNSEEN) == "never seen"
    assert math.isnan(Field("shade", "category", ("dark",)).read("pink"))  # a graph to which it is missing
    assert expected[3, 2] == 2  # a level that is called none is not missing


@pytest.mark.parametrize(
    "moment",
    [
        date(1970, 1, 3),
        datetime(1970, 1, 3),
        datetime(1970, 1, 3, 2, tzinfo=timezone(timedelta(hours=2))),
        np.datetime64("1970-01-03T00:00"),
        pd.Timestamp("1970-01-03"),
        "1970-01-03T00:00:00Z",
    ],
)
def test_dates_of_any_type(moment):
    assert FIELDS[6].read(moment) == 2


@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%M:%S+05:30", "%Y-%m-%d %H:%M:%SZ", "%Y-%m-%dT%H:%M:%S-01"])
def test_times_with_an_offset_from_universal_time(form):
    field = Field("when", "date", format=form)
    said = "2024-01-31T10:00:00" + form.partition("%S")[2]
    column = Column("when", "date", (), "object", form)
    number = float(code_frame(pd.DataFrame({"when": [said]}), [column])[0, 0])
    assert field.read(said) == pytest.approx(number, abs=1e-9)
    assert datetime.fromisoformat(field.write(number)) == datetime.fromisoformat(said)
    assert field.write(number)[:19] == said[:19]
    for beyond in (-1e9, 1e9):
        assert field.write(beyond)[4] == "-"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": "many"}, "row 1, column 'n': 'many' is not a number"),
        ({"n": "$5"}, "'\\$5' is not a number \\(without currency"),
        ({"calls": float("inf")}, "row 1, column 'calls': inf is not finite"),
        ({"n": 10**5000}, "row 1, column 'n': a number of more than 308 digits is not finite"),
        ({"day": "soon"}, "row 1, column 'day': 'soon' is not a date as 2024-01-31"),
        ({"when": "31/31/2024 00:00"}, "is not a date as 2024-01-31 or %d/%m/%Y %H:%M"),
        ({"n": [1]}, "column 'n': '\\[1\\]' is not a number"),
    ],
)
def test_cells_that_cannot_be_read_are_named(change, message):
    with pytest.raises(InputError, match=message):
        read_rows([ROWS[0], ROWS[1] | change], FIELDS)


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="row 0: has no column 'n' \\(null is a missing value\\)"):
        read_rows([{key: value for key, value in ROWS[0].items() if key != "n"}], FIELDS)
    with pytest.raises(InputError, match="row 0 is a list: expected a mapping"):
        read_rows([[1, 2]], FIELDS)
    with pytest.raises(InputError, match=r"an array \(2, 3\) of float64: expected numbers \(n, 8\)"):
        read_rows(np.zeros((2, 3)), FIELDS)
    with pytest.raises(InputError, match="row 1: an infinite value"):
        read_rows(np.array([[1.0], [np.inf]]), FIELDS[:1])
    with pytest.raises(InputError, match=r"columns of \[1, 2\] cells"):
        read_rows({"n": [1], "calls": [1, 2]}, FIELDS[:2])
    assert read_rows([], FIELDS).shape == (0, 8)


def test_numbers_are_written_as_what_a_column_holds():
    numbers = [1.5, 3.0, 1.0, 1.0, 0.0, 0.0, 2.0, 0.5]
    written = [field.write(number) for field, number in zip(FIELDS, numbers, strict=True)]
    assert written == [1.5, 3, "light", True, "N", False, "1970-01-03", "1970-01-01T12:00:00"]
    assert FIELDS[0].write(math.nan) is None
    assert FIELDS[6].write(1e12) == "9999-12-31"


def test_files_that_are_no_exported_model_are_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    file = tmp_path / "model.onnx"
    file.write_bytes(b"not a graph")
    with pytest.raises(InputError, match=r"model.onnx: onnxruntime cannot read it"):
        Detector.load(file)
