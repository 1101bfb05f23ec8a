"""Frames in, frames out: columns, index, types and library of X, whatever is learned of it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lapae import LaplacianAutoencoder

rng = np.random.default_rng(0)
N = 120
t = rng.normal(size=N)
FRAME = pd.DataFrame(
    {
        "id": np.arange(N) + 1000,
        "size": 5 + t + 0.1 * rng.normal(size=N),
        "rooms": rng.poisson(2 + t**2),
        "city": np.where(t > 0, "Rome", "Oslo"),
        "sold": rng.random(N) > 0.5,
        "since": pd.Timestamp("2020-01-01") + pd.to_timedelta((300 * t).round(), unit="D"),
        "country": "Utopia",
        "note": [f"met at number {i}" for i in range(N)],
    },
    index=[f"row {i}" for i in range(N)],
)
GAPPY = FRAME.assign(
    size=FRAME["size"].where(np.arange(N) % 5 > 0), city=FRAME["city"].where(np.arange(N) % 7 > 0, None)
)
LEARNED = ["size", "rooms", "city", "sold", "since"]
VERBS = ("reconstruct", "explain", "counterfactual", "predict_interval", "impute", "impute_interval")


@pytest.fixture(scope="module")
def model():
    with pytest.warns(UserWarning, match="left out"):
        return LaplacianAutoencoder(epochs=2, random_state=0, device="cpu").fit(FRAME)


def frames(found):
    return found if isinstance(found, tuple | list) else (found,)


@pytest.mark.parametrize("verb", VERBS)
def test_columns_and_index_are_those_of_the_input(model, verb):
    for found in frames(getattr(model, verb)(GAPPY)):
        assert list(found.columns) == list(FRAME.columns)
        assert list(found.index) == list(FRAME.index)
        others = found.loc[:, ["id", "country", "note"]]
        if verb in ("explain", "counterfactual"):
            assert others.isna().all(axis=None)
        else:
            pd.testing.assert_frame_equal(others, FRAME.loc[:, ["id", "country", "note"]])


def test_values_have_the_types_of_the_input(model):
    assert list(model.learned_columns_) == LEARNED
    filled = model.impute(GAPPY)
    assert filled.dtypes.tolist() == FRAME.dtypes.tolist()
    there = GAPPY.notna()
    assert filled.notna().all(axis=None)
    assert (filled.where(there, 0) == GAPPY.where(there, 0)).all(axis=None)
    assert set(filled["city"]) == {"Rome", "Oslo"}
    draws = model.impute(GAPPY, n_samples=3)
    assert [list(draw.columns) for draw in draws] == [list(FRAME.columns)] * 3
    assert np.std([draw["size"].iloc[0] for draw in draws]) > 0
    x, deviation = model.reconstruct(FRAME, return_std=True)
    assert x["sold"].dtype == bool
    assert (deviation["size"] > 0).all()


def test_the_mean_of_whole_numbers_is_between_them_and_that_of_words_is_a_word():
    late = np.arange(N) % 5 == 0
    frame = FRAME.assign(rooms=FRAME["rooms"].where(~late), once=np.where(late, np.nan, t > rng.normal(size=N)))
    frame = frame.assign(sold=FRAME["sold"].where(~late, None), city=FRAME["city"].where(~late, None))
    with pytest.warns(UserWarning, match="left out"):
        model = LaplacianAutoencoder(epochs=2, random_state=0, device="cpu").fit(frame)
    middle, mean = model.impute(frame), model.impute(frame, guess="mean")
    for name in ("rooms", "once"):  # 0 or 1 is a share of ones
        assert (middle[name] % 1 == 0).all()
        assert (mean[name][late] % 1 > 0).mean() > 0.8
        assert (mean[name][~late] == frame[name][~late]).all()
    assert mean["once"].between(0, 1).all()
    assert set(mean["city"]) == {"Rome", "Oslo"}
    assert set(mean["sold"]) == set(middle["sold"])


def test_impute_keeps_cells_that_the_model_cannot_read(model):
    odd = GAPPY.assign(city=GAPPY["city"].mask(GAPPY["city"] == "Rome", " Rmoe"))
    with pytest.warns(UserWarning, match="Rmoe"):
        filled = model.impute(odd)
    known = odd["city"].notna()
    assert (filled["city"][known] == odd["city"][known]).all()


@pytest.mark.parametrize("backend", ["numpy_nullable", "pyarrow"])
def test_nullable_and_arrow_types(model, backend):
    frame = GAPPY.convert_dtypes(dtype_backend=backend)
    filled = model.impute(frame)
    assert filled.dtypes.tolist() == frame.dtypes.tolist()
    np.testing.assert_array_equal(filled["size"].astype(float), model.impute(GAPPY)["size"])
    np.testing.assert_array_equal(model.score_samples(frame), model.score_samples(GAPPY))


def test_other_libraries(model):
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    plain = GAPPY.reset_index(drop=True)
    polars, table = pl.from_pandas(plain), pa.Table.from_pandas(plain, preserve_index=False)
    for verb in VERBS:
        ours = frames(getattr(model, verb)(plain))
        for found, expected in zip(frames(getattr(model, verb)(polars)), ours, strict=True):
            assert isinstance(found, pl.DataFrame)
            assert found.columns == list(plain.columns)
            np.testing.assert_allclose(found["size"].to_numpy().astype(float), expected["size"])
    assert model.impute(polars).schema == polars.schema
    days = polars.with_columns(pl.col("since").cast(pl.Date))
    assert model.explain(days)["since"].dtype == pl.Float64
    assert model.impute(days)["since"].dtype == pl.Date

    class Stream:
        def __arrow_c_stream__(self, requested_schema=None):
            return table.__arrow_c_stream__(requested_schema)

    for given in (table, Stream()):
        filled = model.impute(given)
        assert isinstance(filled, pa.Table)
        np.testing.assert_array_equal(filled["size"].to_numpy(), model.impute(plain)["size"])


def test_empty_cells_that_mean_false_and_times_among_objects():
    frame = pd.DataFrame(
        {"a": t, "flag": np.where(t > 0, 1.0, np.nan), "took": pd.to_timedelta(60 * (9 + t), unit="s")}
    )
    model = LaplacianAutoencoder(epochs=2, random_state=0, device="cpu").fit(frame)
    made = model.sample(50, random_state=0)
    assert set(made["flag"].dropna()) == {1.0}
    assert 10 < made["flag"].isna().sum() < 40
    objects = frame[:5].astype(object)
    objects.loc[2, "took"] = None
    np.testing.assert_array_equal(model.p_value(frame[:2].astype(object)), model.p_value(frame[:2]))
    assert model.impute(objects)["took"].map(lambda cell: isinstance(cell, pd.Timedelta)).all()


def test_frames_of_numbers_alone_are_learned_as_others_are(tmp_path):
    frame = pd.DataFrame({"id": np.arange(N), "a": t, "n": rng.poisson(3, N), "c": 2.73, "b": t + rng.normal(size=N)})
    with pytest.warns(UserWarning, match=r"'id' \(an index.*'c' \(constant\)"):
        model = LaplacianAutoencoder(epochs=2, random_state=0, device="cpu").fit(frame)
    assert list(model.learned_columns_) == ["a", "n", "b"]
    new = model.sample(20)
    assert new["n"].dtype == np.int64
    assert list(new.columns) == ["a", "n", "b"]
    model.save(tmp_path / "run")
    again = LaplacianAutoencoder.load(tmp_path / "run")
    assert again.n_features_in_ == model.n_features_in_ == 5
    gappy = frame.where(rng.random(frame.shape) > 0.2)
    pd.testing.assert_frame_equal(again.impute(gappy), model.impute(gappy))
    values = again.impute(gappy.to_numpy())  # an array of all columns of `fit`
    np.testing.assert_array_equal(values, model.impute(gappy))
    assert np.isnan(again.explain(frame.to_numpy())[:, [0, 3]]).all()


@pytest.mark.parametrize("labels", [[0, 1, 2], [10, 20, 30], ["a", "a", "b"]])
def test_samples_have_the_labels_and_types_of_the_frame(labels, tmp_path):
    made = [FRAME["size"].astype("float32"), FRAME["rooms"].astype("Int64"), FRAME["city"].astype("category")]
    frame = pd.concat(made, axis=1).set_axis(labels, axis=1)
    model = LaplacianAutoencoder(epochs=1, random_state=0, device="cpu").fit(frame)
    model.save(tmp_path / "run")
    for one in (model, LaplacianAutoencoder.load(tmp_path / "run")):
        new = one.sample(5)
        assert new.columns.tolist() == one.learned_columns_.tolist() == labels
        assert new.dtypes.tolist() == frame.dtypes.tolist()
        assert one.impute_levels(frame).columns.tolist() == labels[2:]


def test_samples_are_frames_of_the_library_that_was_fitted():
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    plain = FRAME[LEARNED].reset_index(drop=True)
    for frame in (pl.from_pandas(plain), pa.Table.from_pandas(plain, preserve_index=False)):
        new = LaplacianAutoencoder(epochs=1, random_state=0, device="cpu").fit(frame).sample(5)
        assert type(new) is type(frame)
        theirs = pl.DataFrame(new).schema if isinstance(new, pa.Table) else new.schema
        assert theirs == (pl.DataFrame(frame).schema if isinstance(frame, pa.Table) else frame.schema)
    arrow = plain.convert_dtypes(dtype_backend="pyarrow")
    new = LaplacianAutoencoder(epochs=1, random_state=0, device="cpu").fit(arrow).sample(5)
    assert new.dtypes.equals(arrow.dtypes)  # pyright: ignore


def test_lists_and_objects_may_hold_what_pandas_has_for_a_missing_value():
    x = np.array(FRAME[["size", "rooms"]], object)
    x[3, 0], x[4, 1] = pd.NA, None
    numbers = np.where(pd.isna(x), np.nan, x).astype(float)
    model = LaplacianAutoencoder(epochs=1, random_state=0, device="cpu").fit(x)
    for given in (x, x.tolist()):
        np.testing.assert_array_equal(model.score_samples(given), model.score_samples(numbers))
    with pytest.raises(ValueError, match=r"X contains text, .*'Oslo'.*: expected numbers, or a frame"):
        model.fit(np.array([["Oslo", 1], ["Rome", 2]], object))


def test_truth_values_among_objects_stay_such():
    sold = FRAME["sold"].astype(object).where(np.arange(N) % 9 > 0, np.nan)
    model = LaplacianAutoencoder(epochs=1, random_state=0, device="cpu").fit(FRAME[["size"]].assign(sold=sold))
    filled = model.impute(FRAME[["size"]].assign(sold=sold))["sold"]
    assert {type(value) for value in filled} == {bool}
    assert (filled == sold)[sold.notna()].all()
    assert set(model.sample(50)["sold"].dropna()) == {True, False}


def test_sparse_matrices_are_refused():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match=r"[Ss]parse.*dense"):
        LaplacianAutoencoder(epochs=1).fit(sparse.csr_matrix(np.eye(50)))


def test_samples_of_several_shapes_are_refused_in_plain_words():
    with pytest.raises(ValueError, match=r"samples of different shapes: expected samples of one shape, as one array"):
        LaplacianAutoencoder(epochs=1).fit([np.zeros((16, 16)), np.zeros((8, 16))])


@pytest.mark.parametrize("dtype", ["int64", "Int64"])
def test_whole_numbers_beyond_those_of_floats_stay_as_they_are(dtype):
    rng = np.random.default_rng(0)
    given = pd.DataFrame({"key": rng.choice(2**60 + 1000 * np.arange(50) + 1, 80), "count": rng.random(80)})
    given = given.astype({"key": dtype})
    model = LaplacianAutoencoder(epochs=1, random_state=0).fit(given)
    given.loc[3, "count"] = np.nan
    if dtype == "Int64":
        given.loc[4, "key"] = pd.NA
    filled = model.impute(given)
    known = given["key"].notna()
    assert filled["key"].dtype == dtype
    assert filled["key"].notna().all()
    assert filled["key"][known].tolist() == given["key"][known].tolist()
