"""A sensor stream, learned day by day: an alarm when it changes, and a model that follows.

Four sensors of a machine. After two weeks a part is exchanged and the machine runs differently: the alarm comes, the
new behaviour is learned, and the p-values of the days after are those of normal data again. Takes about half a minute.

    python examples/stream.py [DAYS]
"""

from __future__ import annotations

import sys

import numpy as np

from lapae import LaplacianAutoencoder

DAYS, CHANGE, PER_DAY = 24, 14, 96  # every quarter of an hour


def day(number: int, rng: np.random.Generator) -> np.ndarray:
    """Temperature, pressure, current and vibration (PER_DAY, 4), driven by a load that nobody measures."""
    hour = np.linspace(0, 24, PER_DAY)
    load = 0.5 - 0.4 * np.cos(2 * np.pi * hour / 24) + 0.1 * rng.standard_normal(PER_DAY)
    heat = 60 + 25 * load if number < CHANGE else 52 + 40 * load**2
    sensors = [heat, 2 + 0.8 * load, 10 + 6 * load, 0.3 + 0.1 * load**2]
    noise = np.array([0.5, 0.02, 0.15, 0.01]) * rng.standard_normal((PER_DAY, 4))
    return np.stack(sensors, 1) + noise


def main(days: int) -> None:
    rng = np.random.default_rng(0)
    first_week = np.concatenate([day(number, rng) for number in range(7)])
    model = LaplacianAutoencoder(random_state=0, device="cpu").fit(first_week)
    alarm = model.drift_alarm(every=10_000)  # a false alarm in a hundred days, at most
    for number in range(7, days):
        today = day(number, rng)
        p = model.p_value(today)
        found = alarm.update(-model.score_samples(today))
        news = "" if found is None else f"  ALARM at reading {found}: the data have changed"
        print(f"day {number:2}: {np.mean(p <= 0.05):4.0%} of the readings flagged at 5 %{news}")
        model.partial_fit(today)
        if found is None:
            alarm.renew(model.reference_)
        else:
            alarm.reset(model.reference_)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DAYS)
