"""Measure what two columns of 190 levels each do to a model of taxi trips: python benchmarks/categories.py taxis.csv

Fits 4,500 trips with and without the two zones and prints, on trips that training has not seen: the mean absolute error
of a hidden fare, the share of hidden payments and boroughs that are filled in wrongly, how far a hidden pickup is off
while the dropoff is known, and the share of trips that are flagged as unusual as they are, with the pickup three days
early, and with a borough that is not that of the trip.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from typing import Any

import numpy as np
import pandas as pd

from lapae import LaplacianAutoencoder

ZONES = ["pickup_zone", "dropoff_zone"]
ROWS, TESTED = 4500, 600


def hidden(model: Any, rows: Any, name: str) -> tuple[Any, Any]:
    """Return true values of a column and those that are filled in, where the true ones are known."""
    rows = rows[rows[name].notna()]
    return rows[name], model.impute(rows.assign(**{name: None}))[name]


def share_wrong(model: Any, rows: Any, name: str) -> float:
    truth, filled = hidden(model, rows, name)
    return float((truth.to_numpy(object) != filled.to_numpy(object)).mean())


def measure(train: Any, rows: Any) -> dict[str, float]:
    began = time.perf_counter()
    model = LaplacianAutoencoder(random_state=0, device="cpu").fit(train)
    found = {"seconds to fit": time.perf_counter() - began}
    fare, guess = hidden(model, rows, "fare")
    found["fare, mean absolute error"] = float((fare - guess.astype(float)).abs().mean())
    found["payment wrong"] = share_wrong(model, rows, "payment")
    found["pickup borough wrong"] = share_wrong(model, rows, "pickup_borough")
    found["dropoff borough wrong"] = share_wrong(model, rows, "dropoff_borough")
    if ZONES[0] in rows:
        found["pickup zone wrong"] = share_wrong(model, rows, "pickup_zone")
    pickup, guess = hidden(model, rows, "pickup")
    gap = (pd.to_datetime(pickup) - pd.to_datetime(guess)).dt.total_seconds().abs() / 3600
    found |= {"pickup off, hours (mean)": float(gap.mean()), "pickup off, hours (median)": float(gap.median())}
    early = (pd.to_datetime(rows["pickup"]) - pd.Timedelta(days=3)).dt.strftime("%Y-%m-%d %H:%M:%S")
    known = rows[rows["pickup_borough"].notna()]
    boroughs = sorted(train["pickup_borough"].dropna().unique())
    rng = np.random.default_rng(0)
    other = [rng.choice([b for b in boroughs if b != own]) for own in known["pickup_borough"]]
    cases = {
        "flagged as they are": rows,
        "flagged, pickup early": rows.assign(pickup=early),
        "flagged, other borough": known.assign(pickup_borough=other),
    }
    return found | {name: float((model.predict(case) == -1).mean()) for name, case in cases.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    table = pd.read_csv(arguments.file).sample(frac=1, random_state=0).reset_index(drop=True)
    train, rows = table[:ROWS], table[ROWS : ROWS + TESTED]
    found = {
        "with zones": measure(train, rows),
        "without zones": measure(train.drop(columns=ZONES), rows.drop(columns=ZONES)),
    }
    print(json.dumps(found, indent=1) if arguments.json else pd.DataFrame(found).round(4).to_string())


if __name__ == "__main__":
    main()
