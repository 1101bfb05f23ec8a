"""Series in time: windows, splits that share no step, and values per window folded back to steps."""

from __future__ import annotations

import csv
import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from narrow import as_a

from lapae.cli import main
from lapae.data import Data, DataError, load, open_input
from lapae.space.series import Fold, cut, is_clock, starts, time_faults, times_of

T = 400


def series() -> pd.DataFrame:
    t = np.arange(T)
    noise = np.random.default_rng(0).normal(size=(T, 2))
    values = 0.1 * noise + np.stack([np.sin(t / 9), np.cos(t / 9)], 1)
    time = pd.date_range("2024-01-01", periods=T, freq="h")
    return pd.DataFrame({"time": time, "flow": 5 + values[:, 0], "heat": 100 + 20 * values[:, 1]})


def steps_of(data: Data, split: str, series: np.ndarray) -> set[int]:
    """The steps that the windows of a split hold; values of the first channel are no two alike."""
    place = {value: step for step, value in enumerate(series[:, 0].tolist())}
    return {place[value] for value in np.asarray(getattr(data, split).x)[..., 0].ravel().tolist()}


@pytest.mark.parametrize(("window", "stride"), [(16, 1), (16, 4), (16, 16), (10, 25), (7, 3)])
def test_no_step_is_in_two_splits_and_time_goes_on(window, stride):
    x = series()[["flow", "heat"]].to_numpy()
    data = Data.of(x, window=window, stride=stride, validation=5, calibration=5, test=5)
    assert (data.kind, data.shape, data.space.stride) == ("series", (window, 2), stride)
    steps = [steps_of(data, split, x) for split in ("train", "valid", "calib", "test")]
    for earlier, later in itertools.pairwise(steps):
        assert max(earlier) < min(later)
    assert min(steps[0]) == 0


def test_a_table_an_array_and_a_frame_give_the_same_windows(tmp_path):
    frame = series()
    frame.to_csv(tmp_path / "t.csv", index=False)
    np.save(tmp_path / "t.npy", frame[["flow", "heat"]].to_numpy())
    with pytest.warns(UserWarning, match=r"'time' \(an index: it names the rows\)"):
        whole = Data.of(frame, window=16, stride=4, name="t")
    assert whole.space.names == ("flow", "heat")
    with pytest.warns(UserWarning, match="'time'"):
        assert load(tmp_path / "t.csv", window=16, stride=4, test=0).space == whole.space
    array = load(tmp_path / "t.npy", window=16, stride=4, test=0)
    np.testing.assert_allclose(array.train.x, whole.train.x)
    np.testing.assert_allclose(array.space.scale, whole.space.scale)


def test_each_channel_has_one_scale():
    data = Data.of(series()[["flow", "heat"]].to_numpy(), window=16, stride=4)
    z = data.space.to_model(data.train.x)
    np.testing.assert_allclose(z.mean((0, 1)), 0, atol=1e-5)
    np.testing.assert_allclose(z.std((0, 1)), 1, atol=1e-5)
    assert data.space.describe() == f"{len(data.train)} windows of 16 steps, 4 apart, of 2 channels"


@given(st.integers(1, 20), st.integers(1, 9), st.integers(0, 60))
def test_windows_cover_every_step(window, stride, more):
    n = window + more
    first = starts(n, window, stride)
    covered = np.zeros(n, bool)
    for start in first:
        covered[start : start + window] = True
    assert covered.all() or stride > window
    assert first[-1] == n - window
    folds = Fold(n)
    folds.add(first, cut(np.arange(float(n))[:, None], window)[first])
    folded = folds.mean()
    np.testing.assert_array_equal(folded[covered, 0], np.flatnonzero(covered))
    assert np.isnan(folded[~covered]).all()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"window": 500}, "a series of 400 steps is shorter than a window of 500"),
        ({"window": 1}, "window=1"),
        ({"stride": 3}, "needs a window"),
        ({"window": 300, "validation": 0.3}, "leave none to train on|shorter"),
    ],
)
def test_impossible_windows(options, match):
    with pytest.raises(DataError, match=match):
        Data.of(series()[["flow", "heat"]].to_numpy(), **options)


def test_images_are_no_series(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((30, 8, 8), np.uint8))
    with pytest.raises(DataError, match=r"a window is for a series \(time, channels\)"):
        load(tmp_path / "x.npy", window=4)
    with pytest.raises(DataError, match="window=4 is for series"):
        load("digits", window=4)


def test_new_series_and_windows():
    x = series()[["flow", "heat"]].to_numpy()
    space = Data.of(x, window=16, stride=5).space
    windows = space.code(x)
    assert windows.shape == (len(starts(T, 16, 5)), 16, 2)
    np.testing.assert_array_equal(windows[-1], x[-16:])
    np.testing.assert_array_equal(space.code(windows), windows)
    with pytest.raises(DataError, match="shape"):
        space.code(x[:, :1])


def test_categories_of_a_series_are_left_out():
    frame = series().drop(columns="time").assign(state=["on", "off"] * (T // 2))
    with pytest.warns(UserWarning, match=r"'state' \(a category: a series holds numbers\)"):
        assert Data.of(frame, window=8).space.names == ("flow", "heat")


def test_commands(tmp_path):
    """Train, then score each step and channel, fill holes and embed windows."""
    frame = series()
    frame.to_csv(tmp_path / "t.csv", index=False)
    run = str(tmp_path / "run")
    quick = ["--hidden", "16", "--epochs", "6", "--device", "cpu", "--no-verbose", "--latent-dim", "4"]
    assert main(["train", str(tmp_path / "t.csv"), "--window", "16", "--stride", "2", "--out", run, *quick]) == 0
    frame.loc[200:207, "heat"] += 300
    frame.loc[50:53, "flow"] = np.nan
    frame.to_csv(tmp_path / "new.csv", index=False)
    assert main(["score", run, str(tmp_path / "new.csv"), "-o", str(tmp_path / "s.csv"), "--device", "cpu"]) == 0
    scored = pd.read_csv(tmp_path / "s.csv")
    columns = ["time", "anomaly_score", "p_value", "p_adaptive", "drift", "unusual_flow", "unusual_heat", "outlier"]
    assert scored.columns.tolist() == columns
    assert len(scored) == T
    np.testing.assert_array_equal(scored["outlier"] == 1, scored["p_value"] <= 0.05)
    assert abs(as_a(pd.Series, scored["anomaly_score"]).argmax() - 203) <= 16
    assert 200 <= as_a(pd.Series, scored["unusual_heat"]).argmax() <= 207
    assert scored.loc[200:207, "unusual_heat"].mean() > 5 * scored.loc[200:207, "unusual_flow"].mean()
    assert main(["impute", run, str(tmp_path / "new.csv"), "-o", str(tmp_path / "full.csv"), "--device", "cpu"]) == 0
    full = pd.read_csv(tmp_path / "full.csv")
    assert as_a(pd.Series, full["flow"]).notna().all()
    np.testing.assert_allclose(full["heat"], frame["heat"])
    assert main(["embed", run, str(tmp_path / "new.csv"), "-o", str(tmp_path / "z.csv"), "--device", "cpu"]) == 0
    with open(tmp_path / "z.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert header[0] == "start"
    assert [int(row[0]) for row in rows] == starts(T, 16, 2).tolist()
    np.save(tmp_path / "new.npy", frame[["flow", "heat"]].to_numpy())
    assert main(["score", run, str(tmp_path / "new.npy"), "-o", str(tmp_path / "s.npz"), "--device", "cpu"]) == 0
    with np.load(tmp_path / "s.npz") as found:
        assert found["unusual"].shape == (T, 2)
        np.testing.assert_allclose(found["anomaly_score"], scored["anomaly_score"], rtol=1e-4)


def test_a_short_new_series_is_an_error(tmp_path):
    x = series()[["flow", "heat"]].to_numpy()
    space = Data.of(x, window=16).space
    np.save(tmp_path / "x.npy", x[:10])
    with pytest.raises(DataError, match="shorter than a window of 16"):
        list(open_input(tmp_path / "x.npy", space).blocks(lambda n: None))


def test_times_that_are_numbers_are_no_channel():
    frame = series().drop(columns="time")
    clock = 1.7e9 + 300 * np.arange(len(frame))
    with pytest.warns(UserWarning, match=r"'seconds' \(the times of the steps\)"):
        assert Data.of(frame.assign(seconds=clock)[["seconds", "flow", "heat"]], window=8).space.names == (
            "flow",
            "heat",
        )
    falls = np.where(np.arange(len(frame)) == 90, 0, clock)  # a reading, not a clock
    assert "seconds" in (Data.of(frame.assign(seconds=falls)[["seconds", "flow", "heat"]], window=8).space.names or ())
    assert not is_clock(np.array([1.0, 1, 1, 2]))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t, []),
        (lambda t: t.tz_localize("UTC").tz_convert("Europe/Berlin"), []),  # an hour is left out in March
        (lambda t: t.strftime("%d.%m.%Y %H:%M"), []),
        (lambda t: t.delete(slice(100, 110)), []),  # shorter than a window
        (lambda t: t.delete(slice(100, 140)), ["a pause longer than a window, after 2024-03-31 00:45:00"]),
        (lambda t: t.insert(50, t[49]), ["1 steps have the time of the one before, the first at 2024-03-30 12:15:00"]),
        (lambda t: t[::-1], ["the steps are not in the order of time: 2024-04-02"]),
    ],
)
def test_faults_of_times_are_told(change, told):
    times = change(pd.date_range("2024-03-30", periods=300, freq="15min"))
    found = times_of([["a", str(cell)] for cell in times])
    assert found is not None
    faults = time_faults(*found, 32)
    assert len(faults) == len(told)
    assert all(fault.startswith(start) for fault, start in zip(faults, told, strict=True))


def test_rows_without_times_have_none():
    assert times_of([["a"], ["b"], ["c"]]) is None
    assert times_of([[], [], []]) is None
    assert times_of([["5"], ["5"], ["5"]]) is None


def test_a_channel_without_a_value_in_training_is_told():
    """Its values in new data have no effect: a sensor that was connected late would be taken for a watched one."""
    frame = series().drop(columns="time")
    frame.loc[: T - 50, "heat"] = np.nan
    with pytest.warns(UserWarning, match="no value at all in channel 'heat' of the training set"):
        Data.of(frame, window=16, stride=4)
    windows = np.random.default_rng(0).normal(size=(60, 16, 3))
    windows[..., 1] = np.nan
    with pytest.warns(UserWarning, match=r"no value at all in channel 1 \(from 0\) of the training set"):
        Data.of(windows)


def test_channels_with_a_value_and_margins_of_images_are_not_told(recwarn):
    windows = np.random.default_rng(0).random((60, 16, 3))
    windows[1:, :, 1] = np.nan
    windows[0, 3:, 1] = np.nan
    data = Data.of(3 * windows - 1, validation=5, calibration=5, test=0)
    assert np.isnan(np.asarray(data.train.x)).any()
    images = np.random.default_rng(0).random((60, 16, 16))
    images[:, :, 15] = np.nan
    assert Data.of(images).kind == "image"
    assert not [str(w.message) for w in recwarn if "no value at all" in str(w.message)]
