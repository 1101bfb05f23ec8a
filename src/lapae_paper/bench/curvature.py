"""`lapae bench curvature`: time and memory of every GGN approximation, compared with installed peers.

There are two parts. The table shows every method on some networks, as multiples of a forward plus backward pass of the
same network in the same process; they take turns. The figure (the paper's figure 7) shows time and memory of five
convolutions of three channels against the side of the image, for each method until it meets a limit. Slopes are fitted
to the larger images, in logarithms of time or memory and of pixels, so that 1 is linear and 2 quadratic.
"""

from __future__ import annotations

import json
import math
import os
import platform
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import linear_regression
from typing import Any, Literal

import torch

from lapae import __version__
from lapae.runs.files import write_whole
from lapae.train.devices import choose_device
from lapae_paper.bench.limited import OURS, Case, Limits, run_limited, today
from lapae_paper.bench.peers import installed_peers

TABLE_SIZES = (8, 32, 96)
NOT_SENSIBLE = {("dense", "block"), ("kl", "bottleneck")} | {
    (network, method) for network in ("fashion", "celeba", "kl") for method in ("block", "exact", "kfac exact")
}
"""Left out: blocks of a million weights, exact methods and a code of 512 numbers, which take minutes per batch."""


SIZED = ("convolutions", "autoencoder")
"""Networks that the figure shows at several sizes; the second has the bottleneck that its method asks for."""


@dataclass(frozen=True)
class CurvatureBench:
    """Time and memory of the curvature, beside peers that are installed."""

    device: str = "auto"
    """auto, cpu or cuda."""
    threads: int = 2
    """CPU threads."""
    methods: tuple[str, ...] = OURS
    """Methods of lapae to measure."""
    peers: bool = True
    """Run BackPACK, curvlinops and laplace-torch too, if installed."""
    table: bool = True
    """Every method on some networks."""
    networks: tuple[Literal["dense", "fashion", "celeba", "kl"], ...] = ("dense", "fashion", "kl")
    """Networks of the table, beside five convolutions: dense, fashion and celeba (the paper's), and kl (AutoencoderKL
    of diffusers, if installed)."""
    batch_size: int | None = None
    """Samples per batch; default: 64 small images or vectors, 8 otherwise."""
    figure: bool = True
    """Time and memory against the size of the image."""
    sizes: tuple[int, ...] = (8, 16, 32, 48, 64, 96, 128)
    """Sides of the images in the figure."""
    seconds: float = 2.0
    """Approximate time to measure a method on a network."""
    call_seconds: float = 20.0
    """A method that takes longer than this for one call is not tried on larger images."""
    memory_gb: float = 6.0
    """Memory that a method may use."""
    out: Path = Path("runs/bench-curvature")
    """Folder for curvature.json and curvature.png."""


def main(options: CurvatureBench) -> int:
    results = run(options)
    options.out.mkdir(parents=True, exist_ok=True)
    write_whole(options.out / "curvature.json", (json.dumps(results, indent=1) + "\n").encode())
    if options.table:
        print("\n" + table(results["rows"], options))
    if options.figure:
        print("\n" + slopes_table(results["rows"]))
        if find_spec("matplotlib") is None:
            print("no figure: matplotlib is not installed here")
        else:
            from lapae_paper.bench.figure import draw

            draw(results["rows"], options.out / "curvature.png", machine(options))
    print(f"\nwrote {options.out}/")
    return 0


def run(options: CurvatureBench) -> dict[str, Any]:
    """Return all results: {options, machine, rows}, one row per method and network; progress goes to the terminal."""
    device = choose_device(options.device)
    limits = Limits(device, options.threads, options.seconds, options.call_seconds, int(options.memory_gb * 2**30))
    rows: list[dict[str, Any]] = []
    for method in (*options.methods, *(installed_peers() if options.peers else ())):
        cases = _cases(method, options)
        for row in run_limited(method, cases, limits):
            rows.append(row)
            print(line(row), flush=True)
    return {"options": {**asdict(options), "out": str(options.out)}, "machine": machine(options), "rows": rows}


def _cases(method: str, options: CurvatureBench) -> list[Case]:
    cases = []
    if options.table:
        networks = [network for network in options.networks if network != "kl" or find_spec("diffusers")]
        cases += [Case(network) for network in networks if (network, method) not in NOT_SENSIBLE]
    sizes = sorted({*(options.sizes if options.figure else ()), *(TABLE_SIZES if options.table else ())})
    cases += [Case("autoencoder" if method == "bottleneck" else "convolutions", size) for size in sizes]
    return [replace(case, batch_size=options.batch_size) for case in cases]


def machine(options: CurvatureBench) -> str:
    """Describe in one line what the numbers were measured on."""
    device = choose_device(options.device)
    where = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU, {options.threads} threads"
    load = "" if device == "cuda" else f", load {os.getloadavg()[0]:.1f} (own work included)"
    return f"{where}, torch {torch.__version__}, lapae {__version__}, {today()}{load}"


def line(row: dict[str, Any]) -> str:
    place = f"{row['network']} {row['size']}x{row['size']}" if row["network"] in SIZED else row["network"]
    begin = f"{row['method']:<20} {place:<22}"
    if "failed" in row:
        after = f" after {row['ms'] / 1e3:.0f} s" if "ms" in row else ""
        return f"{begin} stopped: {row['failed']}{after}"
    shared = f", {row['shared_ratio']:.2f} on a shared forward" if row["shared_ratio"] is not None else ""
    return (
        f"{begin} {row['ms']:9.2f} ms  {row['ratio']:7.2f} x{shared}, memory {row['bytes'] / row['base_bytes']:.2f} x"
    )


def table(rows: list[dict[str, Any]], options: CurvatureBench) -> str:
    """Write a Markdown table: multiples of a forward plus backward pass, in brackets on a shared forward; memory."""
    heads = {(name, 28): "AutoencoderKL" if name == "kl" else name for name in options.networks}
    heads |= {("convolutions", size): f"5 convolutions {size}x{size}" for size in TABLE_SIZES}
    met = {(row["network"], row["size"]) for row in rows}
    heads = {column: head for column, head in heads.items() if column in met}
    found = {(row["method"], row["network"], row["size"]): row for row in rows}
    lines = ["| method | " + " | ".join(heads.values()) + " |", "|---" * (len(heads) + 1) + "|"]
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = [_cell(found.get((method, *column))) for column in heads]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    legend = "Times as multiples of a forward plus backward pass (on a shared forward pass); memory likewise."
    return f"{machine(options)}\n{legend}\n\n" + "\n".join(lines)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    if "failed" in row:
        return f"{row['failed'].split('(')[0].strip()}" + (f" ({row['ratio']:.0f})" if "ratio" in row else "")
    digits = 2 if row["ratio"] < 10 else 0
    shared = f" ({row['shared_ratio']:.{digits}f})" if row["shared_ratio"] is not None else ""
    return f"{row['ratio']:.{digits}f}{shared}; memory {row['bytes'] / row['base_bytes']:.1f}"


def slopes(rows: list[dict[str, Any]]) -> dict[str, tuple[float, float, int]]:
    """Return, by method, slopes of time and memory in pixels over the upper half of its sizes, and its largest size."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["network"] in SIZED and "failed" not in row:
            found.setdefault(row["method"], []).append(row)
    result = {}
    for method, mine in found.items():
        upper = sorted(mine, key=lambda row: row["size"])[-max(3, len(mine) // 2 + 1) :]
        if len(upper) > 1:
            pixels = [math.log(row["size"] ** 2) for row in upper]
            time, memory = (
                linear_regression(pixels, [math.log(row[key]) for row in upper]).slope for key in ("ms", "bytes")
            )
            result[method] = (time, memory, upper[-1]["size"])
    return result


def slopes_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| five convolutions | slope of time | slope of memory | largest image |", "|---|---|---|---|"]
    for method, (time, memory, largest) in slopes(rows).items():
        lines.append(f"| {method} | {time:.2f} | {memory:.2f} | {largest}x{largest} |")
    return "\n".join(lines)
