from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lapae.data import DataError, load
from lapae.data.table import parse_csv, read_csv


@pytest.fixture
def write(tmp_path):
    def write(text, **kwargs):
        path = tmp_path / "t.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode(**kwargs))
        return path

    return write


def rows(n=10):
    return "".join(f"{i},{i * i},{'even' if i % 2 == 0 else 'odd'}\n" for i in range(n))


def test_header_names_and_labels(write):
    data = load(write("a,b,kind\n" + rows()), label_column="kind", validation=0, test=0)
    assert data.kind == "table"
    assert data.feature_names == ("a", "b")
    assert data.label_names == ("even", "odd")
    np.testing.assert_array_equal(data.train.x, [[i, i * i] for i in range(10)])
    np.testing.assert_array_equal(data.train.y, [i % 2 for i in range(10)])
    z = data.space.convert(data.train.x)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(z.std(0), 1, rtol=1e-6)


@pytest.mark.parametrize("label", [2, -1, "2", "-1"])
@pytest.mark.parametrize("header", ["", "a,b,kind\n"])
def test_label_by_number(write, label, header):
    table = parse_csv(write(header + rows()), label_column=label)
    assert table.x.shape == (10, 2)
    assert table.labels == ["even", "odd"] * 5
    assert table.feature_names == (("a", "b") if header else None)


def test_label_in_the_first_column(write):
    table = parse_csv(write("y,a\n3,0.5\n1,1.5\n"), label_column="y")
    assert table.feature_names == ("a",)
    assert table.labels == ["3", "1"]


def test_number_labels_are_ordered_as_numbers(write):
    data = load(write("y,a\n" + "".join(f"{y},1\n" for y in (10, 9, 2.0, 9))), label_column="y", validation=0, test=0)
    assert data.label_names == ("2", "9", "10")
    np.testing.assert_array_equal(data.train.y, [2, 1, 0, 1])


def test_label_number_as_text_that_is_also_a_label(write):
    assert parse_csv(write("a,b,c\n1,2,2\n3,4,0\n"), label_column="2").labels == ["2", "0"]


def test_named_column_among_numbers_as_names(write):
    table = parse_csv(write("0,1,target\n5,6,a\n7,8,b\n"), label_column="target")
    assert table.feature_names == ("0", "1")
    assert table.x.tolist() == [[5, 6], [7, 8]]


@pytest.mark.parametrize(
    ("text", "names", "x"),
    [
        ("1,2\n3,4\n", None, [[1, 2], [3, 4]]),
        ("\ufeffa,b\r\n1,2\r\n3,4", ("a", "b"), [[1, 2], [3, 4]]),
        ('"a, or b";c\n1;2\n', ("a, or b", "c"), [[1, 2]]),
        ("a\tb\n 1\t2e3 \n\n", ("a", "b"), [[1, 2000]]),
        ("a\n1\n2\n", ("a",), [[1], [2]]),
        (",b\n0,1\n", ("", "b"), [[0, 1]]),
    ],
)
def test_dialects(write, text, names, x):
    table = parse_csv(write(text))
    assert table.feature_names == names
    assert table.x.tolist() == x


def test_missing_values(write):
    path = write("a,b\n1,\nNaN,2\n3,NA\n4,5\n5,n/a\n6,null\n")
    with pytest.raises(DataError, match=r"t\.csv, row 2, column 'b': '' is missing"):
        load(path)
    data = load(path, allow_nan=True, validation=0, test=0)
    np.testing.assert_array_equal(np.isnan(data.train.x).sum(0), [1, 4])
    np.testing.assert_allclose(data.space.offset, [3.8, 3.5])


def test_first_row_of_missing_values_is_no_header(write):
    assert parse_csv(write("nan,\n1,2\n"), allow_nan=True).x.shape == (2, 2)


@pytest.mark.parametrize(
    ("text", "arguments", "match"),
    [
        ("", {}, "is empty"),
        ("\n\n", {}, "is empty"),
        ("a,b\n", {}, "no rows"),
        ("y\n1\n", {"label_column": "y"}, "no rows of numbers"),
        ("a,b\n1,2\n3,x y\n", {}, "row 3, column 'b': 'x y' is not a number"),
        ("1,2\n3,x\n", {}, "row 2, column 1: 'x' is not a number"),
        ("1,text\n3,4\n", {}, "row 1, column 1: 'text' is not a number"),
        ("y,a,b\n1,2,3\n1,2,x\n", {"label_column": "y"}, "row 3, column 'b': 'x'"),
        ("a,b\n1_0,2\n", {}, "row 2, column 'a': '1_0'"),
        ("a,b\n1,2\n3\n", {}, "row 3: 1 cells, expected 2"),
        ("a,b\n1,2\n3,4,5\n", {}, "row 3: 3 cells, expected 2"),
        ("a,b\n1,inf\n", {}, "row 2, column 'b': 'inf' is not finite"),
        ("a,b\n1,-inf\n", {"allow_nan": True}, "row 2, column 'b': '-inf' is not finite"),
        ("a,b\n1,1e999\n", {"allow_nan": True}, "row 2, column 'b': '1e999' is not finite"),
        ("a,b\n1,nan\n", {}, "row 2, column 'b': 'nan' is missing"),
        (
            "age,class\n1,2\n",
            {"label_column": "clas"},
            "no column 'clas' \\(did you mean 'class'\\?\\); it has age, class",
        ),
        ("1,2\n", {"label_column": "class"}, "no column 'class'; it has no header"),
        ("1,2\n", {"label_column": 2}, "no column 2, it has 2"),
        ("1,2\n", {"label_column": -3}, "no column -3, it has 2"),
        ("a,a\n1,2\n", {"label_column": "a"}, "2 columns are named 'a'"),
        ("1,x\n2,x\n3,x\n", {"label_column": "x"}, "'x' is a label and no column"),
        ("a,y\n1,2\n1,\n", {"label_column": "y"}, "row 3: the label is empty"),
        ("a,y\n1,2\n1,0.5\n", {"label_column": "y"}, "row 3: the label is '0.5'"),
        (b"a,b\n1,\xff\n", {}, "cannot be read as .csv"),
        (b"a,b\n1,\0\n", {}, "row 2|cannot be read"),
        ('a,b\n1,"2\n', {}, "cannot be read as .csv"),
        ("a,b\n1," + "9" * 200_000 + "\n", {}, "cannot be read as .csv"),
    ],
)
def test_bad_tables(write, text, arguments, match):
    with pytest.raises(DataError, match=rf"(?s)t\.csv.*({match})"):
        load(write(text), **arguments)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 4).flatmap(
        lambda width: st.lists(
            st.lists(st.floats(allow_infinity=False, allow_nan=True), min_size=width, max_size=width), min_size=1
        )
    )
)
def test_numbers_survive(tmp_path, values):
    path = tmp_path / "h.csv"
    path.write_text("\n".join(",".join("" if math.isnan(v) else repr(v) for v in row) + "," for row in values))
    x = parse_csv(path, allow_nan=True).x[:, :-1]
    np.testing.assert_array_equal(x, values)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=60), st.text(alphabet='01a,;"\n\r\t.-e ', max_size=60).map(str.encode)))
def test_any_bytes_give_a_table_or_a_data_error(tmp_path, content):
    path = tmp_path / "any.csv"
    path.write_bytes(content)
    with contextlib.suppress(DataError):  # any other error fails
        assert np.isfinite(parse_csv(path).x).all()


@pytest.mark.parametrize("name", ["", "id", "Unnamed: 0"])
def test_a_column_that_numbers_the_rows_is_not_learned(write, name):
    path = write(f"{name},a,b\n7,0.5,1\n3,1.5,2\n9,2.5,4\n")
    with pytest.warns(UserWarning, match="numbers the rows, and is not learned"):
        records = read_csv(path)
    assert [column.name for column in records.columns] == ["a", "b"]
    np.testing.assert_array_equal(records.x, [[0.5, 1], [1.5, 2], [2.5, 4]])


@pytest.mark.parametrize(
    "text",
    [
        "id,a\n1,0.5\n1,1.5\n",  # twice the same
        "id,a\n1.5,0.5\n2,1.5\n",  # not whole
        "x,a\n1,0.5\n2,1.5\n",  # another name
        "a,id\n0.5,1\n1.5,2\n",  # not the first
    ],
)
def test_what_only_looks_like_an_index_is_learned(write, text):
    assert read_csv(write(text)).x.shape == (2, 2)


def test_an_index_alone_is_data(write):
    assert read_csv(write("id\n1\n2\n")).x.shape == (2, 1)


@pytest.mark.parametrize("words", [("2024-01-01", "2024-01-02", "2024-01-03"), ("pump 7", "pump 9", "fan")])
def test_a_column_that_names_the_rows_is_not_learned(write, words):
    path = write("when,a,kind,b\n" + "".join(f"{word},{i}.5,x,{i}\n" for i, word in enumerate(words)))
    with pytest.warns(UserWarning, match="'when' names the rows, and is not learned"):
        records = read_csv(path, label_column="kind")
    assert [column.name for column in records.columns] == ["a", "b"]
    np.testing.assert_array_equal(records.x, [[0.5, 0], [1.5, 1], [2.5, 2]])


@pytest.mark.parametrize("words", ["red red blue", "red 7 blue", "red NA blue"])
def test_words_that_name_no_rows_are_refused(write, words):
    text = "".join(f"{word},{i}\n" for i, word in enumerate(words.split()))
    with pytest.raises(DataError, match=r"row 2, column 'kind': 'red' is not a number \(label_column, --label-column"):
        read_csv(write("kind,a\n" + text), allow_nan=True)
