"""`stream()` of the estimator and of a model: judged in order, saved and gone on with."""

from __future__ import annotations

import numpy as np
import pytest

from lapae import LaplacianAutoencoder
from lapae.errors import RunError


def readings(n: int, seed: int, creep: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    load = rng.uniform(0, 1, (n, 1))
    x = np.concatenate([60 + 25 * load, 2 + 0.8 * load, 10 + 6 * load], axis=1)
    return x + [0.5, 0.02, 0.15] * rng.standard_normal((n, 3)) + np.linspace(0, creep, n)[:, None] * [1, 0, 0]


@pytest.fixture(scope="module")
def model() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(random_state=0, epochs=5).fit(readings(600, 0))


def test_samples_one_by_one_are_judged_as_together(model):
    x = readings(50, 1)
    x[7] = np.nan
    one_by_one, together = model.stream(), model.stream()
    with pytest.warns(UserWarning, match="nothing observed"):
        step = together.update(x)
    with pytest.warns(UserWarning, match="nothing observed"):
        steps = [one_by_one.update(row) for row in x]
    np.testing.assert_allclose(step.anomaly_score, [s.anomaly_score for s in steps])
    np.testing.assert_array_equal(step.p_value, [s.p_value for s in steps])
    np.testing.assert_array_equal(step.p_adaptive, [s.p_adaptive for s in steps])
    assert step.flagged.tolist() == [s.flagged for s in steps]
    assert isinstance(steps[0].flagged, bool)
    assert isinstance(steps[0].anomaly_score, float)
    assert np.isnan(steps[7].p_adaptive)
    assert one_by_one.n_seen == 49


def test_the_static_p_value_stays_what_it_is_and_the_adaptive_one_follows(model):
    x = readings(6000, 2, creep=6.0)
    step = model.stream().update(x)
    np.testing.assert_array_equal(step.p_value, model.p_value(x))
    assert (step.p_value <= 0.05).mean() > 0.25
    assert step.flagged.mean() == pytest.approx(0.05, abs=0.02)


def test_a_stream_is_saved_and_goes_on(model, tmp_path):
    x = readings(600, 3)
    x[300:, 1] = 2.0  # stuck
    whole = model.stream(every=1000).update(x)
    first = model.stream(every=1000)
    first.update(x[:400])
    first.save(tmp_path / "state")
    second = model.stream(state=tmp_path / "state")
    assert second.drift == first.drift
    np.testing.assert_array_equal(second.update(x[400:]).p_adaptive, whole.p_adaptive[400:])
    assert whole.drift[400:].all()
    second.accept()
    assert not second.drift
    other = LaplacianAutoencoder(random_state=0, epochs=3).fit(readings(300, 5))
    with pytest.raises(RunError, match="another model"):
        other.stream(state=tmp_path / "state")
    (tmp_path / "state").write_bytes(b"nothing")
    with pytest.raises(RunError):
        model.stream(state=tmp_path / "state")
