"""The paper's figure 7: time and memory against the size of the image, every method until it stops."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapae.bench.contest import OURS
from lapae.files import whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(rows: list[dict[str, Any]], path: Path, machine: str) -> None:
    """The figure as a PNG file."""
    with whole(path) as temporary:
        figure(rows, machine).savefig(temporary, dpi=150, format="png")


def figure(rows: list[dict[str, Any]], machine: str) -> Figure:
    """Two panels with logarithmic axes: ours in solid lines, peers dashed, a forward plus backward pass in black."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.subplots(1, 2)
    mine = [row for row in rows if row["network"] in ("convolutions", "autoencoder") and "failed" not in row]
    methods = list(dict.fromkeys(row["method"] for row in mine))
    for key, base, scale, axis in (("ms", "base_ms", 1.0, axes[0]), ("bytes", "base_bytes", 2.0**-20, axes[1])):
        plain = sorted({row["size"]: row[base] * scale for row in mine if row["network"] == "convolutions"}.items())
        axis.plot(*zip(*plain, strict=True), color="black", linewidth=2, label="forward + backward")
        for i, method in enumerate(methods):
            points = sorted((row["size"], row[key] * scale) for row in mine if row["method"] == method)
            style = "-" if method in OURS else "--"
            axis.plot(*zip(*points, strict=True), style, marker=".", color=f"C{i % 10}", label=method)
        axis.set(xscale="log", yscale="log", xlabel="side of the image")
        sizes = sorted({row["size"] for row in mine})
        axis.set_xticks(sizes, [str(s) for s in sizes])
        axis.minorticks_off()
    axes[0].set_ylabel("time of a batch of 8 (ms)")
    axes[1].set_ylabel("extra memory at the peak (MB)")
    axes[1].legend(fontsize=7, ncols=2)
    figure.suptitle(machine, fontsize=8)
    return figure
