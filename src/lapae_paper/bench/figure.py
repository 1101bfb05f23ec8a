"""The paper's figure 7: time and memory against the size of the image, every method until it stops."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapae.runs.files import whole
from lapae_paper.bench.limited import OURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


STYLES = {"": "-", "backpack": "--", "curvlinops": ":", "laplace-torch": "-."}
"""Line styles by library; lapae has the empty name."""


def draw(rows: list[dict[str, Any]], path: Path, machine: str) -> None:
    """Write the figure as a PNG file."""
    with whole(path) as temporary:
        figure(rows, machine).savefig(temporary, dpi=150, format="png")


def figure(rows: list[dict[str, Any]], machine: str) -> Figure:
    """Draw two panels with logarithmic axes: one colour per kind of curvature, one style per library (solid: lapae).

    A forward plus backward pass is black.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    axes = figure.subplots(1, 2)
    mine = [row for row in rows if row["network"] in ("convolutions", "autoencoder") and "failed" not in row]
    methods = list(dict.fromkeys(row["method"] for row in mine))
    for key, base, scale, axis in (("ms", "base_ms", 1.0, axes[0]), ("bytes", "base_bytes", 2.0**-20, axes[1])):
        plain = sorted({row["size"]: row[base] * scale for row in mine if row["network"] == "convolutions"}.items())
        axis.plot(*zip(*plain, strict=True), color="black", linewidth=2, label="forward + backward")
        for method in methods:
            points = sorted((row["size"], row[key] * scale) for row in mine if row["method"] == method)
            axis.plot(*zip(*points, strict=True), marker=".", label=method, **_look(method))
        axis.set(xscale="log", yscale="log", xlabel="side of the image")
        sizes = sorted({row["size"] for row in mine})
        axis.set_xticks(sizes, [str(s) for s in sizes])
        axis.minorticks_off()
    axes[0].set_ylabel("time of a batch of 8 (ms)")
    axes[1].set_ylabel("extra memory at the peak (MB)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False)
    figure.suptitle(machine, fontsize=8)
    return figure


def _look(method: str) -> dict[str, str]:
    """Return style and colour of a line."""
    library, _, kind = ("", "", method) if method in OURS else method.partition(" ")
    return {"linestyle": STYLES[library], "color": f"C{OURS.index(kind)}"}
