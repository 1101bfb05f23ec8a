"""Time and memory of Hessian approximations against the size of the image (the paper's figure 7).

The network has five convolutions of three channels, the batch 8 samples (quick size: small images). Each method runs
until a call takes too long or too much memory; slopes are in logarithms of the number of pixels, so that 1 is linear
and 2 quadratic. Installed peers (BackPACK, curvlinops, laplace-torch) are measured, too. `lapae bench curvature` makes
the same measurement with more options.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

from lapae_paper.bench.curvature import CurvatureBench, machine, slopes
from lapae_paper.bench.curvature import run as measure
from lapae_paper.bench.figure import figure
from lapae_paper.bench.limited import OURS
from lapae_paper.experiments.base import Outcome, Table, experiment
from lapae_paper.experiments.workspace import Workspace

PAPER = {"exact": "quadratic; out of memory at about 36x36 of 11 GB", "kfac": "scales poorly", "approx": "linear"}
"""What the paper says of figure 7, which has no table."""


@experiment(
    "compute",
    of="figure 7",
    about="time and memory of every Hessian approximation against the size of the image, peers beside",
    minutes=(1, 2),
)
def run(workspace: Workspace) -> Outcome:
    """Measure, fit the slopes, draw."""
    full = CurvatureBench(
        device=workspace.torch_device,
        table=False,
        sizes=(8, 16, 24, 32, 48, 64, 96, 128),
        seconds=0.3,
        call_seconds=2.0,
        memory_gb=11.0,
    )
    quick = CurvatureBench(
        device="cpu", table=False, sizes=(4, 8, 12), seconds=0.02, call_seconds=60.0, peers=False, threads=1
    )
    options = workspace.size(full, quick)
    with redirect_stdout(sys.stderr):  # one line per result, as it comes in
        results = measure(options)
    rows = []
    fitted = slopes(results["rows"])
    for method in dict.fromkeys(row["method"] for row in results["rows"]):
        mine = [row for row in results["rows"] if row["method"] == method]
        stopped = next(
            (
                f"{row['failed'].split('(')[0].strip()} at {row['size']}x{row['size']}"
                for row in mine
                if "failed" in row
            ),
            "-",
        )
        if method not in fitted:
            rows.append((method, "-", "-", "-", "-", stopped, PAPER.get(method, "-")))
            continue
        time, memory, largest = fitted[method]
        at = next(row for row in mine if row["size"] == largest)
        cells = (f"{time:.2f}", f"{memory:.2f}", f"{largest}x{largest}", f"{at['ratio']:.2f}", stopped)
        rows.append((method, *cells, PAPER.get(method, "-")))
    columns = (
        "method",
        "slope of time",
        "slope of memory",
        "largest image",
        "time there, in forward + backward",
        "stopped by",
        "paper",
    )
    note = (
        f"Limits: {options.call_seconds:g} s a call, {options.memory_gb:g} GB. Ours: {', '.join(OURS)}; bottleneck on "
        "the same convolutions with a code of two numbers in their middle, as it needs one."
    )
    return Outcome(
        [Table("Cost against the number of pixels", columns, rows)],
        {"compute": figure(results["rows"], machine(options))},
        {"rows": results["rows"]},
        [note],
    )
