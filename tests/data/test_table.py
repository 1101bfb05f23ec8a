"""Tables in files: dialects, headers, labels, what is refused and where."""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from narrow import sure

from lapae.data import Data, DataError, load, open_input
from lapae.data.csv_file import MOST_LINE
from lapae.data.table import TableReader

ALL: dict[str, Any] = {"validation": 0, "calibration": 0, "test": 0}


@pytest.fixture
def write(tmp_path):
    def write(text, **kwargs):
        path = tmp_path / "t.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode(**kwargs))
        return path

    return write


def names(records):
    return [column.name for column in records.columns]


def rows(n=10):
    return "".join(f"{i},{i * i},{'even' if i % 2 == 0 else 'odd'}\n" for i in range(n))


def test_header_names_and_labels(write):
    data = load(write("a,b,kind\n" + rows()), label_column="kind", **ALL)
    assert data.kind == "table"
    assert data.space.feature_names == ("a", "b")
    assert data.label_names == ("even", "odd")
    np.testing.assert_array_equal(data.train.x, [[i, i * i] for i in range(10)])
    np.testing.assert_array_equal(data.train.y, [i % 2 for i in range(10)])
    z = data.space.to_model(data.train.x)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(z.std(0), 1, rtol=1e-6)


@pytest.mark.parametrize("label", [2, -1, "2", "-1"])
@pytest.mark.parametrize("header", ["", "a,b,kind\n"])
def test_label_by_number(write, label, header):
    found = TableReader(write(header + rows()), label_column=label).records()
    assert found.x.shape == (10, 2)
    assert found.label_names == ("even", "odd")
    assert names(found) == (["a", "b"] if header else ["0", "1"])


def test_number_labels_are_ordered_as_numbers(write):
    path = write("y,a\n" + "".join(f"{y},{i}.5\n" for i, y in enumerate((10, 9, 2.0, 9))))
    data = load(path, label_column="y", **ALL)
    assert data.label_names == ("2", "9", "10")
    np.testing.assert_array_equal(data.train.y, [2, 1, 0, 1])


def test_named_column_among_numbers_as_names(write):
    found = TableReader(write("0,1,target\n5,6,a\n7,8,b\n"), label_column="target").records()
    assert names(found) == ["0", "1"]
    assert np.asarray(found.x).tolist() == [[5, 6], [7, 8]]


@pytest.mark.parametrize(
    ("text", "columns", "x"),
    [
        ("1,2\n3,4\n", ["0", "1"], [[1, 2], [3, 4]]),
        ("\ufeffa,b\r\n1,2\r\n3,4", ["a", "b"], [[1, 2], [3, 4]]),
        ('"a, or b";c\n1;2\n3;4\n', ["a, or b", "c"], [[1, 2], [3, 4]]),
        ("a\tb\n 1\t2e3 \n\n2\t3\n", ["a", "b"], [[1, 2000], [2, 3]]),
        ("a\n1\n2\n", ["a"], [[1], [2]]),
        ("a,a\n1,2\n3,4\n", ["a", "a.1"], [[1, 2], [3, 4]]),
        ('a,b\n"1","2"\n3,4\n', ["a", "b"], [[1, 2], [3, 4]]),
        ('"a\nb",c\n1,2\n3,4\n', ["a\nb", "c"], [[1, 2], [3, 4]]),
        ("a;b\n1,5;-2,25\n3;4\n", ["a", "b"], [[1.5, -2.25], [3, 4]]),
        ("a\tb\n1,5\t2\n3,5\t4\n", ["a", "b"], [[1.5, 2], [3.5, 4]]),
        ("a|b\n1|2\n3|4\n", ["a", "b"], [[1, 2], [3, 4]]),
        ('a,b\n"1,234",2\n"3,500",4\n', ["a", "b"], [[1234, 2], [3500, 4]]),
        ("a;b\n1,234;2\n3,5;4\n", ["a", "b"], [[1.234, 2], [3.5, 4]]),
        ("nan,\n1,2\n3,4\n", ["0", "1"], [[math.nan, math.nan], [1, 2], [3, 4]]),
    ],
)
def test_dialects(write, text, columns, x):
    path = write(text)
    found = TableReader(path).records()
    assert names(found) == columns
    np.testing.assert_array_equal(found.x, x)
    space = load(path, **ALL).space
    for written in (False, True):  # a model reads the file in the same way, as numbers and as it is written
        (block,) = open_input(path, space, written=written).blocks(lambda n: None)
        np.testing.assert_array_equal(block.x, x)


def test_a_file_and_a_frame_of_the_same_content_are_the_same_data(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=50), "n": rng.integers(0, 40, 50), "c": rng.choice(["x", "y"], 50)})
    frame.loc[3, "a"] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    whole = Data.of(frame, seed=3, name="t")
    for data in (load(tmp_path / f"t.{suffix}", seed=3, test=0) for suffix in ("csv", "parquet")):
        assert data.space == whole.space
        for one, other in zip(
            (data.train, data.valid, data.calib), (whole.train, whole.valid, whole.calib), strict=True
        ):
            np.testing.assert_array_equal(one.x, other.x)


def of_all_types(n: int, width: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(n, width)), columns=[f"x{i}" for i in range(width)])
    frame["count"] = pd.Series(rng.integers(0, 90, n)).astype("Int64").where(rng.random(n) > 0.1)
    frame["flag"] = pd.Series(rng.random(n) < 0.5).astype(object).where(np.arange(n) != n - 1, None)  # in one part
    frame["colour"] = rng.choice(["red", "green", "blue"], n)
    frame["shape"] = pd.Categorical(rng.choice(["round", "square"], n))
    frame["day"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D")
    frame["note"] = [f"row {i} of many words" for i in range(n)]
    return frame


@pytest.mark.parametrize(
    ("n", "width", "group"), [(20_000, 4, None), (200_000, 1, None), (20_000, 4, 3000), (2000, 800, 500)]
)
@pytest.mark.filterwarnings("ignore:.*left out")
def test_parquet_files_of_many_rows(tmp_path, n, width, group):
    frame = of_all_types(n, width)
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=group)
    found = TableReader(tmp_path / "t.parquet").records()
    assert names(found) == [*frame.columns[:-1]]
    whole = Data.of(frame, name="t").space
    assert found.columns == whole.columns
    np.testing.assert_array_equal(found.x, whole.code(frame))


def test_parquet_files_beyond_the_memory_are_refused(tmp_path, monkeypatch):
    """By what the first rows take, and how many rows there are: neither before nor long after."""
    of_all_types(20_000, 40).to_parquet(tmp_path / "t.parquet", row_group_size=1000)
    reader = TableReader(tmp_path / "t.parquet")
    monkeypatch.setattr("lapae.data.bounds.free_memory", lambda: 2**22)
    with pytest.raises(DataError, match=r"t\.parquet: 0\.0 GB unpacked, and 0\.0 GB of memory are free"):
        reader.records()
    monkeypatch.setattr("lapae.data.bounds.free_memory", lambda: 2**26)
    assert len(reader.frame()) == 20_000


def test_missing_values(write):
    path = write("a,b\n1,\nNaN,2\n3,NA\n4,5\n5,n/a\n6,null\n")
    with pytest.raises(DataError, match=r"t\.csv, row 2, column 'b': a value is missing"):
        load(path, allow_nan=False)
    data = load(path, **ALL)
    assert data.space.missing
    np.testing.assert_array_equal(np.isnan(data.train.x).sum(0), [1, 4])
    np.testing.assert_allclose(data.space.offset, [3.8, 3.5])


@pytest.mark.parametrize(
    ("text", "arguments", "match"),
    [
        ("", {}, "is empty"),
        ("\n\n", {}, "is empty"),
        ("a,b\n", {}, "no rows"),
        ("y\n1\n", {"label_column": "y"}, "no rows of features"),
        ("a,b\n1,2\n3\n", {}, "row 3: 1 cells, expected 2"),
        ("a,b\n1,2\n\n3\n4,5,6\n", {}, "row 4: 1 cells, expected 2"),
        ("a,b\n1,2\n3,4,5\n", {}, "row 3: 3 cells, expected 2"),
        ('a,b\n1,"2\n3"\n"4"\n', {}, "row 4: 1 cells, expected 2"),
        ("a,b\n1,inf\n2,3\n", {}, "row 2, column 'b': 'inf' is not finite"),
        ("a,b\n1,2\n1,-inf\n", {}, "row 3, column 'b': '-inf' is not finite"),
        ("a,b\n1,1e999\n2,3\n", {}, "row 2, column 'b': '(inf|1e999)' is not finite"),
        (
            "age,class\n1,2\n",
            {"label_column": "clas"},
            "no column 'clas' \\(did you mean 'class'\\?\\); it has age, class",
        ),
        ("1,2\n", {"label_column": "class"}, "no column 'class'"),
        ("1,2\n", {"label_column": 2}, "no column 2, it has 2"),
        ("1,2\n", {"label_column": -3}, "no column -3, it has 2"),
        ("1,x\n2,x\n3,x\n", {"label_column": "x"}, "'x' is a label and no column"),
        ("a,y\n1,2\n1,\n", {"label_column": "y"}, "row 3: the label is empty"),
        ("a,y\n1,2\n1,0.5\n", {"label_column": "y"}, "row 3: the label is '0.5'"),
        ("a,b\n1,2\n3,4\n", {"columns": ["c"]}, "no column 'c'; it has a, b"),
        ("a,b\n1,2\n3,4\n", {"drop": ["a", "b"]}, "no rows of features"),
        ("a,b\n1,\n1,\n", {}, "no column that can be learned: 'a' \\(constant\\); 'b' \\(without a single value\\)"),
        (b"a,b\n1,\x81\n", {}, "cannot be read as .csv: it is neither UTF-8 nor Windows-1252 .* save it as UTF-8"),
        ("a,b\n1,ö\n".encode("utf-16-le"), {}, "cannot be read as .csv: .* zero bytes, .* save it as UTF-8"),
        ('a,b\n1,"2\n', {}, "cannot be read as .csv"),
    ],
)
def test_bad_tables(write, text, arguments, match):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(DataError, match=rf"(?s)t\.csv.*({match})"):
            load(write(text), **arguments)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,b\n1,2\n3,x y\n", "row 3, column 'b': 'x y' is not a number"),
        ("a,b\n1_0,2\n", "row 2, column 'a': '1_0' is not a number"),
        ("a,b\n1,inf\n", "row 2, column 'b': 'inf' is not finite"),
        ("a,b\n\n1,2\n\n1\n", "row 5: 1 cells, expected 2"),
        ("a,c\n1,2\n", "has no column 'b'; it has a, c; the model was trained on a, b"),
        ("1,2,3\n", "3 columns, the model takes 2 features"),
    ],
)
def test_new_rows_that_do_not_fit(write, text, match):
    space = Data.of(pd.DataFrame(np.random.default_rng(0).normal(size=(30, 2)), columns=["a", "b"])).space
    with pytest.raises(DataError, match=match):
        list(open_input(write(text), space, any_range=True).blocks(lambda n: None))


@pytest.mark.parametrize("where", ["first", "later", "quoted"])
def test_a_row_without_end_is_refused_early(write, where):
    endless = "1," * (MOST_LINE // 2 + 10)
    text = {"first": endless, "later": f"a,b\n1,2\n{endless}\n", "quoted": f'a,b\n1,"{endless}"\n'}[where]
    with pytest.raises(DataError, match=r"a row of more than 16,777,216 bytes"):
        load(write(text))


def test_more_than_there_is_memory_for_is_not_read(write, monkeypatch):
    monkeypatch.setattr("lapae.data.bounds.free_memory", lambda: 2 * 10**5)
    path = write("a,b\n" + "1.5,2\n" * 20_000)
    with pytest.raises(DataError, match=r"t\.csv: .* of memory are free; store its numbers as \.npy"):
        load(path)


def test_cells_that_read_as_numbers_at_first_and_not_later(tmp_path, monkeypatch):
    monkeypatch.setattr("lapae.data.table.CHUNK_CELLS", 20)
    frame = pd.DataFrame(
        {"x": np.arange(60.0) % 7, "code": ["1", "2"] * 15 + ["1", "b"] * 15, "f": [True] * 30 + [None, False] * 15}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = load(tmp_path / "t.csv", **ALL)
    kinds = {column.name: (column.kind, column.categories) for column in sure(data.space.columns)}
    assert kinds["code"] == ("category", ("1", "2", "b"))
    assert kinds["f"] == ("boolean", ("False", "True"))
    np.testing.assert_array_equal(data.train.x[:, 2], frame["f"].astype(float))


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
    path.write_text("\n".join(",".join("" if math.isnan(v) else repr(v) for v in row) + ",1" for row in values))
    frame = TableReader(path).frame()
    np.testing.assert_array_equal(frame.iloc[:, :-1].astype(float), values)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=60), st.text(alphabet='01a,;"\n\r\t.-e ', max_size=60).map(str.encode)))
def test_any_bytes_give_a_table_or_a_data_error(tmp_path, content):
    path = tmp_path / "any.csv"
    path.write_bytes(content)
    with contextlib.suppress(DataError), warnings.catch_warnings():  # any other error fails
        warnings.simplefilter("ignore")
        assert not np.isinf(TableReader(path).records().x).any()


@pytest.mark.parametrize("name", ["", "id", "Unnamed: 0"])
def test_a_column_that_numbers_the_rows_is_not_learned(write, name):
    path = write(f"{name},a,b\n7,0.5,1\n3,1.5,2\n9,2.5,4\n")
    with pytest.warns(UserWarning, match=rf"left out: '{name}' \(an index: it numbers the rows\)"):
        found = TableReader(path).records()
    assert names(found) == ["a", "b"]
    np.testing.assert_array_equal(found.x, [[0.5, 1], [1.5, 2], [2.5, 4]])


@pytest.mark.parametrize(
    "text",
    [
        "id,a\n1,0.5\n1,1.5\n2,2\n",  # twice the same
        "id,a\n1.5,0.5\n2,1.5\n3,3\n",  # not whole
        "x,a\n1,0.5\n2,1.5\n3,3\n",  # another name
    ],
)
def test_what_only_looks_like_an_index_is_learned(write, text):
    assert TableReader(write(text)).records().x.shape == (3, 2)


def test_a_first_row_with_a_zero_is_no_header(write):
    assert TableReader(write("Oslo,0\nRome,1\nOslo,2\nRome,3\n")).records().x.shape == (4, 2)


def test_an_index_alone_is_data(write):
    assert TableReader(write("id\n1\n2\n")).records().x.shape == (2, 1)


@pytest.mark.parametrize("words", [("2024-01-01", "2024-01-02", "2024-01-03"), ("pump 7", "pump 9", "fan")])
def test_a_column_that_names_the_rows_is_not_learned(write, words):
    path = write("when,a,kind,b\n" + "".join(f"{word},{i}.5,x,{i}\n" for i, word in enumerate(words)))
    with pytest.warns(UserWarning, match=r"'when' \(an index: it names the rows\)"):
        found = TableReader(path, label_column="kind").records()
    assert names(found) == ["a", "b"]
    np.testing.assert_array_equal(found.x, [[0.5, 0], [1.5, 1], [2.5, 2]])


def test_holes_beside_a_label(write):
    data = load(write("a,b,y\n1,,u\n2,NA,v\n3,4,u\n4,5,v\n"), label_column="y", **ALL)
    np.testing.assert_array_equal(data.train.x[:, 1], [np.nan, np.nan, 4, 5])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings(tmp_path, encoding):
    text = 'größe,"straße"\n' + "".join(f'{i}.5,"{"Köln" if i % 2 else "Gießen, Süd"}"\n' for i in range(30_000))
    (tmp_path / "t.csv").write_bytes(text.encode(encoding))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        data = load(tmp_path / "t.csv", **ALL)
    assert ["Windows-1252" in str(warning.message) for warning in told] == [True] * (encoding == "latin-1")
    number, place = sure(data.space.columns)
    assert (number.name, place.name, place.categories) == ("größe", "straße", ("Gießen, Süd", "Köln"))
    np.testing.assert_array_equal(data.train.x[:, 0], np.arange(30_000) + 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        blocks = list(open_input(tmp_path / "t.csv", data.space).blocks(lambda n: None))
    np.testing.assert_array_equal(np.concatenate([block.x for block in blocks]), data.train.x)


def test_rows_that_are_to_be_written_again_keep_their_blanks(write):
    path = write("a,b,c\n" + "1.5, Male ,x\n 2.5,Female, y\n" * 20)
    space = load(path, **ALL).space
    (block,) = open_input(path, space, written=True).blocks(lambda n: None)
    assert block.written.iloc[:2].to_numpy().tolist() == [["1.5", " Male ", "x"], [" 2.5", "Female", " y"]]
    np.testing.assert_array_equal(block.x[:2], [[1.5, 1, 0], [2.5, 0, 1]])


def test_text_among_numbers(tmp_path):
    """A few cells of text in a column of numbers are missing and named, in training and in new files."""
    values = [f"{i}.5" for i in range(98)] + ["sold", "unknown"]
    pd.DataFrame({"price": values, "kind": ["x", "y"] * 50}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.warns(UserWarning, match=r"no numbers or dates count as missing \('price': 'sold', 'unknown'\)"):
        data = load(tmp_path / "t.csv", **ALL)
    price = sure(data.space.columns)[0]
    assert (price.kind, price.lenient) == ("number", True)
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(data.train.x[:, 0])), [98, 99])
    (tmp_path / "new.csv").write_text("price,kind\n3,x\nlater,y\n")
    for written in (False, True):
        with pytest.warns(UserWarning, match=r"count as missing \('price': 'later'\)"):
            (block,) = open_input(tmp_path / "new.csv", data.space, written=written).blocks(lambda n: None)
        np.testing.assert_array_equal(block.x, [[3, 0], [np.nan, 1]])
