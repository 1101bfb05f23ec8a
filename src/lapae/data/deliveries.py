"""Generated table of deliveries of a parcel service: words, counts and numbers that go together.

A route takes time and fuel by its length, its zone and its vehicle; packages have a weight; all of them have a price.
Every column has noise of its own, so that none follows exactly from the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

VEHICLES = {"bike": (16.0, 0.0, 4, 0.15), "van": (38.0, 0.085, 20, 0.30), "truck": (46.0, 0.24, 45, 0.55)}
"""Vehicle: speed (km/h) outside towns, fuel (l/km), usual number of packages, price of a kilometre (EUR)."""
ZONES = {"centre": (0.55, 4.0, (0.45, 0.45, 0.10)), "suburb": (0.8, 11.0, (0.10, 0.65, 0.25))}
ZONES["country"] = (1.0, 24.0, (0.0, 0.6, 0.4))
"""Zone: share of the speed outside towns, usual length of a route (km), shares of the vehicles."""
ERRORS = (
    ("distance", 10.0, "a decimal point lost"),
    ("duration", 1 / 60, "hours instead of minutes"),
    ("weight", 0.001, "tonnes instead of kilograms"),
    ("fuel", 4.0, "fuel that did not go into this vehicle"),
    ("cost", 0.1, "a digit lost"),
)
"""Errors to plant: the column, what its value is multiplied by, and what happened."""


def deliveries(n: int, seed: int = 0, *, longer: float = 1.0) -> pd.DataFrame:
    """Generate deliveries without errors and without missing values.

    Args:
        n: number of rows.
        seed: of everything random.
        longer: factor of the lengths of routes; those far above 1 are a shift.

    Returns:
        Frame of the columns vehicle, zone, distance (km), duration (min), packages, weight (kg), fuel (l), cost (EUR).
    """
    import pandas as pd

    rng = np.random.default_rng(seed)
    zone = rng.choice(list(ZONES), n, p=[0.4, 0.4, 0.2])
    vehicle = np.array([rng.choice(list(VEHICLES), p=ZONES[name][2]) for name in zone])
    speed, burns, load, price = np.array([VEHICLES[name] for name in vehicle]).T
    share, length = np.array([ZONES[name][:2] for name in zone]).T

    def noise(scale: float) -> np.ndarray:
        return np.exp(scale * rng.standard_normal(n))

    distance = longer * length * noise(0.35)
    packages = 1 + rng.poisson(load * noise(0.2))
    duration = 60 * distance / (speed * share) * noise(0.10) + 2.5 * packages * noise(0.15)
    weight = packages * np.where(vehicle == "bike", 1.2, 3.5) * noise(0.25)
    fuel = burns * distance * (1 + 0.0015 * weight) * noise(0.08)
    cost = (4 + price * distance + 0.25 * duration + 0.02 * weight + 1.7 * fuel) * noise(0.03)
    return pd.DataFrame(
        {
            "vehicle": vehicle,
            "zone": zone,
            "distance": distance.round(1),
            "duration": duration.round(0),
            "packages": packages,
            "weight": weight.round(1),
            "fuel": fuel.round(2),
            "cost": cost.round(2),
        }
    )


def without_some(frame: pd.DataFrame, share: float, seed: int = 0) -> pd.DataFrame:
    """Return a copy of a frame in which a share of the cells, chosen at random, is missing."""
    return frame.mask(np.random.default_rng(seed).random(frame.shape) < share)


def with_errors(frame: pd.DataFrame, seed: int = 0) -> tuple[pd.DataFrame, dict[int, str]]:
    """Plant one error of each kind, in a row of its own.

    Args:
        frame: deliveries without errors.
        seed: of the choice of rows.

    Returns:
        A copy with the errors, and {row: the column that is wrong}.
    """
    found = frame.copy()
    rows = np.random.default_rng(seed).permutation(np.flatnonzero((frame["vehicle"] != "bike").to_numpy()))
    planted = {int(row): column for row, (column, _, _) in zip(rows, ERRORS, strict=False)}
    for row, (column, factor, _) in zip(planted, ERRORS, strict=True):
        decimals = 3 if factor < 0.01 else 2
        found.loc[row, column] = round(float(found.loc[row, column]) * factor, decimals)
    return found, planted
