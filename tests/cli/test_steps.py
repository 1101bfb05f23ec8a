"""`lapae score` on series: the sensor and the time by name."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

from lapae.calibrate.changes import change_of
from lapae.calibrate.steps import StepScores
from lapae.cli import main
from lapae.cli.drift import apart
from lapae.cli.steps import since

N = 1200


def series(seed: int) -> pd.DataFrame:
    t, rng = np.arange(N), np.random.default_rng(seed)
    frame = {"flow": 5 + np.sin(t / 9), "heat": 100 + 20 * np.cos(t / 7), "load": np.sin(t / 5)}
    frame = {name: values + 0.1 * values.std() * rng.normal(size=N) for name, values in frame.items()}
    return pd.DataFrame({"time": pd.date_range("2024-01-01", periods=N, freq="h"), **frame})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    series(0).to_csv(folder / "train.csv", index=False)
    options = ["--window", "16", "--stride", "4", "--epochs", "10", "--out", str(folder / "run")]
    assert main(["train", str(folder / "train.csv"), *options]) == 0
    return folder


def scored(folder, frame: pd.DataFrame, *options: str) -> pd.DataFrame:
    frame.to_csv(folder / "new.csv", index=False)
    out = folder / "steps.csv"
    assert main(["score", str(folder / "run"), str(folder / "new.csv"), "--out", str(out), *options]) == 0
    return pd.read_csv(out)


def test_the_sensor_and_the_time_are_named(run):
    frame = series(1)
    frame.loc[600:699, "heat"] = frame.loc[600, "heat"]
    found = scored(run, frame, "--explain")
    assert len(found) == N
    assert found["time"].tolist() == frame["time"].astype(str).tolist()
    stuck = found.iloc[610:690]
    assert (stuck["outlier"] == 1).mean() > 0.9
    assert (stuck["channel"] == "heat").mean() > 0.9
    parts = found[["unusual_flow", "unusual_heat", "unusual_load"]].to_numpy()
    np.testing.assert_allclose(found["share"], parts.max(1) / parts.sum(1))


def test_a_file_that_has_drifted_says_since_when_and_by_what(run, capsys):
    frame = series(2)
    frame.loc[300:, "flow"] += 3
    found = scored(run, frame)
    told = re.search("these data have drifted, first at (.*), by flow", capsys.readouterr().err)
    assert told is not None
    hours = (np.datetime64(told[1]) - np.datetime64("2024-01-01")) / np.timedelta64(1, "h")
    assert abs(hours - 300) <= 16
    assert "channel" not in found
    assert found["outlier"].to_numpy()[320:].mean() > 0.9


def test_an_alarm_stands_while_a_sensor_is_at_fault(run):
    frame = pd.concat([series(seed) for seed in range(1, 5)], ignore_index=True)
    frame.loc[2000:2999, "heat"] = frame.loc[2000, "heat"]
    found = scored(run, frame)
    assert list(found)[1:5] == ["anomaly_score", "p_value", "p_adaptive", "drift"]
    fault, before, after = found.iloc[2100:2990], found.iloc[:1980], found.iloc[3300:]
    assert fault["drift"].all()
    assert (fault["p_adaptive"] <= 0.05).mean() > 0.95
    for normal in (before, after):
        assert (normal["p_adaptive"] <= 0.05).mean() < 0.1
        assert normal["drift"].mean() < 0.1


def test_steps_of_awkward_files(run):
    gaps = series(1).drop(index=range(300, 420)).reset_index(drop=True)  # irregular in time
    found = scored(run, gaps, "--explain")
    assert found["time"].tolist() == gaps["time"].astype(str).tolist()
    assert np.isfinite(found[["anomaly_score", "p_value", "p_adaptive"]].to_numpy()).all()
    missing = series(1)
    missing.loc[200:259, ["flow", "heat", "load"]] = np.nan  # longer than a window: nothing is said there
    missing.loc[600:640, "load"] = np.nan
    found = scored(run, missing, "--explain")
    assert len(found) == N
    nothing = found["p_value"].isna().to_numpy()
    assert nothing[216:244].all()
    assert not nothing[:200].any()
    assert not nothing[260:].any()
    assert found.loc[nothing, ["anomaly_score", "p_adaptive", "outlier", "channel"]].isna().to_numpy().all()
    assert not np.any(found["unusual_load"].to_numpy()[616:625])
    short = scored(run, series(1).iloc[:16])  # one window
    assert len(short) == 16
    assert len(set(short["p_value"].tolist())) == 1


def test_a_constant_sensor_and_a_single_one(tmp_path):
    constant = series(0).assign(level=4.0)
    for name, frame in (("constant", constant), ("single", constant.loc[:, ["time", "flow"]])):
        frame.to_csv(tmp_path / "train.csv", index=False)
        options = ["--window", "16", "--stride", "8", "--epochs", "3", "--out", str(tmp_path / "run")]
        assert main(["train", str(tmp_path / "train.csv"), *options]) == 0
        new = series(1).assign(level=4.0).loc[:, list(frame)]
        new.loc[500:599, "flow"] += 8
        found = scored(tmp_path, new, "--explain")
        assert len(found) == N
        assert (found.loc[510:590, "channel"] == "flow").mean() > 0.9, name
        (tmp_path / "run").rename(tmp_path / name)


def test_first_channel_and_first_step():
    unusual = np.array([[0.0, 0, 0], [1, 3, 0], [np.nan, np.nan, np.nan]])
    none = np.zeros(3)
    channel, share = StepScores(none, none, none, none > 0, unusual).leading()
    assert channel.tolist() == [-1, 1, -1]
    assert share.tolist() == [0, 0.75, 0]
    flagged = np.zeros(40, bool)
    flagged[[3, 20]] = True
    flagged[22:] = True
    assert since(flagged) == 20


def drift(folder, frame: pd.DataFrame, capsys, run: str = "run") -> dict:
    frame.to_csv(folder / "later.csv", index=False)
    capsys.readouterr()
    assert main(["drift", str(folder / run), str(folder / "later.csv"), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_drift_of_a_series(run, capsys):
    frame = series(3)
    assert not drift(run, frame, capsys)["drift"]
    frame.loc[300:, "flow"] += 3
    found = drift(run, frame, capsys)
    assert found["drift"]
    assert found["last_row"] is None
    assert abs(found["row"] - 300) <= 32
    assert found["at"] == str(frame["time"][found["row"]])
    assert next(iter(found["columns"])) == "flow"


def test_a_fault_that_is_over_has_an_end(run, capsys):
    frame = series(3)
    frame.loc[400:699, "flow"] += 3
    found = drift(run, frame, capsys)
    assert abs(found["row"] - 400) <= 16
    assert abs(found["last_row"] - 699) <= 32
    assert found["last_at"] == str(frame["time"][found["last_row"]])
    assert next(iter(found["columns"])) == "flow"
    assert main(["drift", str(run / "run"), str(run / "later.csv")]) == 0
    told = capsys.readouterr().out
    assert f"changed from step {found['row']} ({found['at']}) to step {found['last_row']} ({found['last_at']})" in told


def test_a_short_file_that_is_elsewhere_from_its_first_step_has_drifted(run, capsys):
    """It has too few windows for an alarm, which compares them with each other too."""
    frame = series(3).iloc[:300]
    assert not drift(run, frame, capsys)["drift"]
    found = drift(run, frame.assign(flow=frame["flow"] + 6), capsys)
    assert found["drift"]
    assert found["row"] == 0


def test_steps_that_are_further_apart_than_those_of_training_are_told(run, capsys):
    for every, told in ((1, False), (3, True)):
        series(3)[::every].to_csv(run / "other.csv", index=False)
        capsys.readouterr()
        assert main(["score", str(run / "run"), str(run / "other.csv"), "--out", str(run / "other-scores.csv")]) == 0
        assert ("Resample the file first" in capsys.readouterr().err) == told


@pytest.mark.parametrize("command", ["score", "drift"])
def test_what_is_wrong_with_a_file_is_told(run, capsys, command):
    """A dead sensor, steps out of order, a header alone: score and drift say so alike."""
    frame, new = series(3), run / "faulty.csv"
    where = [str(run / "run"), str(new)] + (["--out", str(run / "faulty-scores.csv")] if command == "score" else [])

    def told(frame: pd.DataFrame) -> tuple[int, str]:
        frame.to_csv(new, index=False)
        capsys.readouterr()
        return main([command, *where]), capsys.readouterr().err

    assert told(frame) == (0, "")
    rc, said = told(frame.assign(heat=np.nan))
    assert rc == 0
    assert "no value at all in heat: it has no part in the scores" in said
    one = np.where(np.arange(N) == N - 1, 100.0, np.nan)  # in the last block alone
    assert "no value" not in told(frame.assign(heat=one))[1]
    assert "not in the order of time" in told(frame.iloc[::-1])[1]
    rc, said = told(frame.iloc[:0])
    assert rc == 2
    assert "there are no steps to" in said


def test_drift_of_a_table(run, capsys):
    rng = np.random.default_rng(0)

    def table(n: int) -> pd.DataFrame:
        load = rng.normal(size=n)
        return pd.DataFrame({name: load + 0.3 * rng.normal(size=n) for name in ("a", "b", "c")})

    table(400).to_csv(run / "table.csv", index=False)
    assert main(["train", str(run / "table.csv"), "--epochs", "5", "--out", str(run / "table")]) == 0
    new = table(300)
    assert not drift(run, new, capsys, "table")["drift"]
    far = table(300)
    far["c"] *= 0.01  # other units, near the usual values: no row is unusual for it
    assert next(iter(drift(run, far, capsys, "table")["alone"])) == "c"
    new.loc[150:, "b"] += 4
    found = drift(run, new, capsys, "table")
    assert abs(found["row"] - 150) <= 10
    assert next(iter(found["columns"])) == "b"


def test_where_scores_change():
    rng = np.random.default_rng(0)
    old, new = rng.normal(size=100), rng.normal(size=80)
    assert change_of(old, new + 5) == (0, None)
    new[50:] += 5
    first, end = change_of(old, new)
    assert end is None
    assert abs(first - 50) <= 3  # scores just before the change may be high by chance
    assert change_of(np.zeros(100), np.repeat([0.0, 1.0], [50, 30])) == (50, None)
    assert apart(np.array([0, 4, 8, 9, 16, 17]), 8).tolist() == [0, 2, 4]


@pytest.mark.parametrize("size", [3.0, -3.0])
def test_a_change_of_limited_length_has_an_end(size):
    """Steps 400 to 700 of 4,000, and twenty of them; a second, shorter change is not part of the first."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        old, new = rng.normal(size=200), rng.normal(size=4000)
        new[[1000, 1001]] = np.nan
        new[2000:2100] += size
        new[400:700] += size
        assert np.abs(np.array(change_of(old, new), float) - (400, 700)).max() <= 5
    new[700:] -= np.median(new[700:]) - size  # it lasts
    assert change_of(old, new).end is None
    short = rng.normal(size=1000)
    short[300:320] += 2 * size
    assert np.abs(np.array(change_of(old, short), float) - (300, 320)).max() <= 3
